//! The audit record: one JSON object per decision. Owns the schema and the reason codes, not where lines are written.
//!
//! Every field is documented where it is declared; a change of a field's name or meaning raises [`SCHEMA_VERSION`],
//! an addition does not. A record never holds a secret, a query string or a header.

mod reason;
mod record;

pub use reason::ReasonCode;
pub use record::{
    AuditDestination, AuditPod, AuditRecord, AuditWouldDeny, Decision, Direction, SCHEMA_VERSION,
};
