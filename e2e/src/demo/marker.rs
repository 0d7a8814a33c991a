//! The markers that end a successful run, word for word as the product's documentation has them.

/// One marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Marker {
    /// The upstream got the request, the pod its answer, and the audit line says so.
    EgressAllowed,
    /// The upstream saw the right credential and the pod's own was removed.
    CredentialInjected,
    /// The pod got the refusal and the upstream saw nothing.
    EgressDenied,
    /// A pod that dialled another pod was refused, and the other pod saw nothing.
    DirectBypassDenied,
    /// The target got the call with a verified caller.
    IngressAllowed,
    /// The caller got the refusal and the target saw nothing.
    IngressDenied,
    /// A coding agent's day: public and private git, and a database that it must not reach.
    CodingAgent,
    /// A RAG agent's day: a vector database with an API key that it doesn't hold.
    RagAgent,
    /// Agents that call agents: allowed, denied, and with somebody else's name.
    MultiAgentGateway,
}

impl Marker {
    /// All of them; the demo proves each.
    pub const ALL: &'static [Marker] = &[
        Marker::EgressAllowed,
        Marker::CredentialInjected,
        Marker::EgressDenied,
        Marker::DirectBypassDenied,
        Marker::IngressAllowed,
        Marker::IngressDenied,
        Marker::CodingAgent,
        Marker::RagAgent,
        Marker::MultiAgentGateway,
    ];

    /// The marker as it is printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Marker::EgressAllowed => "EGRESS_ALLOWED_BY_POLICY",
            Marker::CredentialInjected => "CREDENTIAL_INJECTED_BY_ZEROPROXY",
            Marker::EgressDenied => "EGRESS_DENIED_BY_POLICY",
            Marker::DirectBypassDenied => "DIRECT_BYPASS_DENIED_BY_ZEROPROXY",
            Marker::IngressAllowed => "INGRESS_ALLOWED_BY_ZEROPROXY",
            Marker::IngressDenied => "INGRESS_DENIED_BY_ZEROPROXY",
            Marker::CodingAgent => "CODING_AGENT_DEMO_PASSED",
            Marker::RagAgent => "RAG_AGENT_DEMO_PASSED",
            Marker::MultiAgentGateway => "MULTI_AGENT_GATEWAY_DEMO_PASSED",
        }
    }
}
