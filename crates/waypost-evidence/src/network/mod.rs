//! Ports, HTTP answers and containers: names are resolved once, and only checked addresses are connected.

#[cfg(feature = "container")]
pub(crate) mod container;
#[cfg(any(feature = "http", feature = "postgres"))]
pub(crate) mod host;
#[cfg(feature = "http")]
pub(crate) mod http;
#[cfg(any(feature = "http", feature = "container"))]
pub(crate) mod http_client;
pub(crate) mod port;
#[cfg(feature = "http")]
pub(crate) mod resolve;
pub(crate) mod subjects;
#[cfg(any(feature = "http", feature = "postgres"))]
pub(crate) mod tls;
#[cfg(feature = "http")]
pub(crate) mod url;
