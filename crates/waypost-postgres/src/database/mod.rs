//! Settings, connections, statements, schema and errors.

pub(crate) mod connect;
pub(crate) mod error;
pub(crate) mod schema;
pub(crate) mod settings;
pub(crate) mod statement;
pub(crate) mod values;
