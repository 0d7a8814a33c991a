//! Which path does what.

use std::time::{SystemTime, UNIX_EPOCH};

use agent_core::node_settings::TakenSettings;
use agent_core::policy::ExplainRequest;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use serde::{Deserialize, Serialize};

use super::auth::{self, AuthError};
use super::respond::{Reply, json, problem, text, unauthorized, wrong_method};
use super::{Admin, Check, readiness};
use crate::metrics::Sample;
use crate::node_status::{self, OwnSettings};
use crate::policy_store::PolicyStatus;

/// The content type of OpenMetrics text, which prometheus-client writes.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// A question has a few names in it.
const MAX_BODY: usize = 64 * 1024;

#[derive(Serialize)]
struct Ready {
    ready: bool,
    checks: Vec<Check>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version<'a> {
    version: &'a str,
    generation: u64,
    rules: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unavailable_credentials: Vec<Unavailable>,
    /// What the node has taken over of its class.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_settings: Option<TakenSettings>,
}

#[derive(Serialize)]
struct Unavailable {
    file: String,
    reason: &'static str,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReloadBody {
    version: String,
}

#[derive(Serialize)]
struct NotYet<'a> {
    error: &'static str,
    wanted: &'a str,
    active: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a str>,
}

impl Admin {
    pub(super) async fn route(&self, request: Request<Incoming>) -> Reply {
        if request.uri().authority().is_some() {
            return problem(
                StatusCode::FORBIDDEN,
                "this node's proxy serves agent pods; the node itself may use it when `localClient` is configured",
            );
        }
        let path = request.uri().path().to_owned();
        let read = matches!(*request.method(), Method::GET | Method::HEAD);
        let write = *request.method() == Method::POST;
        match path.as_str() {
            "/healthz" if read => text(StatusCode::OK, "ok\n", "text/plain"),
            "/readyz" if read => self.readyz(),
            "/metrics" if read => self.metrics(),
            "/policy/version" if read => {
                self.version(StatusCode::OK, &self.context.policy.status())
            }
            "/reload" if write => self.reload(request).await,
            "/policy/explain" if write => self.explain(request).await,
            "/healthz" | "/readyz" | "/metrics" | "/policy/version" => wrong_method("GET, HEAD"),
            "/reload" | "/policy/explain" => wrong_method("POST"),
            _ => problem(
                StatusCode::NOT_FOUND,
                "there are /healthz, /readyz, /metrics, /policy/version, /reload and /policy/explain",
            ),
        }
    }

    fn readyz(&self) -> Reply {
        let checks = readiness(&self.context, &self.data_path.borrow());
        let ready = checks.iter().all(|check| check.ok);
        let status = if ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        json(status, &Ready { ready, checks })
    }

    fn metrics(&self) -> Reply {
        match self.context.metrics.encode(self.samples()) {
            Ok(body) => text(StatusCode::OK, body, OPENMETRICS),
            Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    fn samples(&self) -> Vec<Sample> {
        let policy = self.context.policy.status();
        let audit = self.context.audit.counts();
        let ready = readiness(&self.context, &self.data_path.borrow())
            .iter()
            .all(|check| check.ok);
        let unavailable = self.context.credentials.unavailable().len() as u64;
        let mut samples = vec![
            Sample::gauge("ready", "1 when /readyz answers 200", u64::from(ready)),
            Sample::gauge(
                "policy_generation",
                "Grows with each policy that becomes active; 0 before the first",
                self.context.policy.generation(),
            ),
            Sample::gauge(
                "policy_rules",
                "Rules of the active policy",
                policy.rules as u64,
            ),
            Sample::gauge(
                "policy_problem",
                "1 while the policy file is not what is active",
                u64::from(policy.problem.is_some()),
            ),
            Sample::gauge(
                "default_connectivity_passthrough",
                "1 while pods without a policy reach everything but what is always denied",
                u64::from(policy.passthrough),
            ),
            Sample::counter(
                "policy_refused",
                "Policy documents that were refused",
                policy.refused,
            ),
            Sample::gauge(
                "pods",
                "Pods of this node with an identity",
                self.context.workloads.len() as u64,
            ),
            Sample::gauge(
                "credentials_missing",
                "Credential files in use that can't be read",
                unavailable,
            ),
            Sample::counter("audit_lines", "Audit lines written", audit.written),
            Sample::counter(
                "audit_shed",
                "Audit lines lost because a buffer was full or a write failed",
                audit.shed,
            ),
            Sample::counter(
                "audit_write_errors",
                "Failed writes of audit lines",
                audit.write_errors,
            ),
        ];
        let node = self.context.nets.node();
        let install = node_status::read_install(&self.context.config.state_dir);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        if let Some(cluster) = &self.context.cluster {
            samples.extend(cluster.health().samples());
        }
        samples.extend(node_status::samples(
            Option::as_ref(&node),
            install.as_ref(),
            now.unwrap_or_default().as_secs(),
        ));
        let settings = OwnSettings::of(&self.context.config).read();
        samples.extend(settings.iter().flat_map(node_status::settings_samples));
        samples.extend(self.kernel.samples());
        samples
    }

    fn version(&self, status: StatusCode, policy: &PolicyStatus) -> Reply {
        let snapshot = self.context.policy.load();
        let unavailable = self.context.credentials.check(&snapshot.credential_files);
        json(
            status,
            &Version {
                version: &policy.version,
                generation: self.context.policy.generation(),
                rules: policy.rules,
                problem: policy.problem.as_deref(),
                node_settings: OwnSettings::of(&self.context.config).read(),
                unavailable_credentials: unavailable
                    .into_iter()
                    .map(|(file, error)| Unavailable {
                        file,
                        reason: error.reason(),
                    })
                    .collect(),
            },
        )
    }

    async fn reload(&self, request: Request<Incoming>) -> Reply {
        let body = match self.authorized(request).await {
            Ok(body) => body,
            Err(reply) => return reply,
        };
        let Ok(wanted) = serde_json::from_slice::<ReloadBody>(&body) else {
            return problem(
                StatusCode::BAD_REQUEST,
                "the body names the version: {\"version\": \"<content hash>\"}",
            );
        };
        let policy = self.context.policy.check_now().await;
        if policy.version == wanted.version {
            return self.version(StatusCode::OK, &policy);
        }
        json(
            StatusCode::CONFLICT,
            &NotYet {
                error: "policy version not yet projected",
                wanted: &wanted.version,
                active: &policy.version,
                problem: policy.problem.as_deref(),
            },
        )
    }

    async fn explain(&self, request: Request<Incoming>) -> Reply {
        let body = match self.authorized(request).await {
            Ok(body) => body,
            Err(reply) => return reply,
        };
        let question: ExplainRequest = match serde_json::from_slice(&body) {
            Ok(question) => question,
            Err(error) => return problem(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let snapshot = self.context.policy.load();
        match snapshot.set.explain(&question, &self.context.nets.load()) {
            Ok(answer) => json(StatusCode::OK, &answer),
            Err(error) => problem(StatusCode::BAD_REQUEST, &crate::telemetry::chain(&error)),
        }
    }

    /// The body of a request that has the token, or the reply to one that hasn't.
    async fn authorized(&self, request: Request<Incoming>) -> Result<Bytes, Reply> {
        let file = self.context.config.reload_token_file.as_deref();
        match auth::check(file, request.headers()) {
            Ok(()) => {}
            Err(error @ AuthError::Off) => {
                return Err(problem(StatusCode::FORBIDDEN, &error.to_string()));
            }
            Err(error @ AuthError::NoToken) => {
                return Err(problem(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()));
            }
            Err(error @ AuthError::Wrong) => return Err(unauthorized(&error.to_string())),
        }
        match Limited::new(request.into_body(), MAX_BODY).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) => Err(problem(StatusCode::BAD_REQUEST, &error.to_string())),
        }
    }
}
