//! Servers for tests: HTTP with certificates, and a private PostgreSQL.

pub mod certificates;
pub mod postgres;
pub mod server;
