//! TLS certificates for test servers. They protect nothing.

/// The certificate authority that signed [`SERVER`]; its key was discarded.
pub const AUTHORITY: &str = include_str!("certificates/authority.pem");
/// The certificate of `localhost` and `127.0.0.1`.
pub const SERVER: &str = include_str!("certificates/server.pem");
/// The private key of [`SERVER`].
pub const KEY: &str = include_str!("certificates/server.key");
