//! Ports, HTTP answers and containers: names are resolved once, and only checked addresses are connected.

pub(crate) mod container;
pub(crate) mod http;
pub(crate) mod http_client;
pub(crate) mod port;
pub(crate) mod resolve;
pub(crate) mod tls;
pub(crate) mod url;
