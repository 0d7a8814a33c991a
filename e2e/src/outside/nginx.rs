//! Writes nginx's configuration: one server block for each name, and a request log that says of a credential only
//! whether it was the right one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::sparse_file;
use crate::addresses::{METADATA, SERVICE_BACKEND};
use crate::pki::Pki;
use crate::secrets::Secrets;

/// The size of the file behind `bulk.example.com/gigabyte`.
pub(super) const GIGABYTE: u64 = 1 << 30;

/// What the configuration is made of.
pub(super) struct Site<'a> {
    /// Where nginx keeps its files.
    pub(super) dir: &'a Path,
    /// The request log.
    pub(super) requests: &'a Path,
    /// The error log.
    pub(super) errors: &'a Path,
    /// The server's certificate.
    pub(super) pki: &'a Pki,
    /// What the protected servers want to see.
    pub(super) secrets: &'a Secrets,
}

impl Site<'_> {
    /// Writes the configuration and the files that are served; returns the configuration's path.
    ///
    /// # Errors
    /// When a file can't be written.
    pub(super) fn write(&self) -> Result<PathBuf> {
        let www = self.dir.join("www");
        fs::create_dir_all(&www)?;
        sparse_file(&www.join("gigabyte"), GIGABYTE)?;
        sparse_file(&www.join("megabyte"), 1 << 20)?;
        let file = self.dir.join("nginx.conf");
        fs::write(&file, self.text())?;
        Ok(file)
    }

    fn text(&self) -> String {
        format!("{}{}}}\n", self.head(), self.servers())
    }

    fn head(&self) -> String {
        let Secrets {
            api_token,
            rag_token,
            ..
        } = self.secrets;
        format!(
            r#"user root; worker_processes 1; pid {dir}/nginx.pid; error_log {errors} warn; worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
map_hash_bucket_size 256; default_type text/plain; keepalive_timeout 60; client_max_body_size 0; sendfile on;
client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3; uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
ssl_certificate {cert}; ssl_certificate_key {key};
map "$host $http_authorization$http_x_api_key" $auth {{
  default wrong; "~^\S+ $" none;
  "api.example.com Bearer {api_token}" right;
  "git.internal.example.com {basic}" right;
  "vector-db.internal.example.com {rag_token}" right;
}}
log_format seen escape=json '{{"host":"$host","to":"$server_addr","from":"$remote_addr","request":"$request","status":$status,'
  '"auth":"$auth","caller":"$http_x_agent_caller","target":"$http_x_agent_target","forwarded":"$http_x_forwarded_for","scheme":"$scheme"}}';
access_log {requests} seen;
"#,
            dir = self.dir.display(),
            errors = self.errors.display(),
            requests = self.requests.display(),
            cert = self.pki.certificate.display(),
            key = self.pki.key.display(),
            basic = self.secrets.repo_basic(),
        )
    }

    fn servers(&self) -> String {
        let dir = self.dir.display();
        let git = format!(
            r#"fastcgi_pass unix:{dir}/git.sock; fastcgi_param QUERY_STRING $query_string; fastcgi_param REQUEST_METHOD $request_method;
  fastcgi_param CONTENT_TYPE $content_type; fastcgi_param CONTENT_LENGTH $content_length; fastcgi_param PATH_INFO $uri;
  fastcgi_param SCRIPT_FILENAME /usr/lib/git-core/git-http-backend; fastcgi_param GIT_PROJECT_ROOT {dir}/git;
  fastcgi_param GIT_HTTP_EXPORT_ALL 1; fastcgi_param REMOTE_USER e2e; fastcgi_param HTTP_CONTENT_ENCODING $http_content_encoding;
  fastcgi_param GIT_PROTOCOL $http_git_protocol; fastcgi_param HOME /root; fastcgi_param PATH /usr/bin:/bin;"#
        );
        format!(
            r#"server {{ listen unix:{dir}/in-step.sock; access_log off; return 204; }}
server {{ listen 80 default_server; server_name _; return 200 "default server\n"; }}
server {{ listen 80; server_name docs.example.com; location / {{ return 200 "hello from docs\n"; }} }}
server {{ listen 80; server_name echo.example.com; location / {{ return 200 "caller=$http_x_agent_caller target=$http_x_agent_target forwarded=$http_x_forwarded_for host=$http_host uri=$request_uri\n"; }} }}
server {{ listen 80; listen 443 ssl; server_name api.example.com;
  if ($auth != right) {{ return 401 "a token is wanted\n"; }}
  location /echo-token {{ add_header X-Echo $http_authorization; return 200 "look at the header\n"; }}
  location / {{ return 200 "the token is right\n"; }} }}
server {{ listen 80; server_name git.example.com; location / {{ {git} }} }}
server {{ listen 80; server_name git.internal.example.com;
  location / {{ if ($auth != right) {{ add_header WWW-Authenticate 'Basic realm="git"' always; return 401; }} {git} }} }}
server {{ listen 80; server_name vector-db.internal.example.com; if ($auth != right) {{ return 401; }}
  location / {{ default_type application/json; return 200 '{{"matches":["agent-network"]}}'; }} }}
server {{ listen 80; server_name prod-db.internal.example.com evil.example.com; return 200 "must never be seen\n"; }}
server {{ listen 80; server_name agent-server agent-server.internal.example.com; return 200 "agent-server answers $http_x_agent_caller\n"; }}
server {{ listen 80; server_name bulk.example.com; root {dir}/www; }}
server {{ listen 443 ssl default_server; server_name secure.example.com other-secure.example.com; return 200 "hello over tls from $ssl_server_name\n"; }}
server {{ listen {METADATA}:80; server_name {METADATA} rebind.example.com; return 200 "metadata-credentials\n"; }}
server {{ listen {SERVICE_BACKEND}:8080; return 200 "hello from the service to $remote_addr\n"; }}
"#
        )
    }
}
