//! Certificates of servers in tests; they protect nothing.

/// The authority that signed [`SERVER`]; its key was thrown away.
pub const AUTHORITY: &str = include_str!("certificates/authority.pem");
/// The certificate of `localhost` and `127.0.0.1`.
pub const SERVER: &str = include_str!("certificates/server.pem");
/// The key of [`SERVER`].
pub const KEY: &str = include_str!("certificates/server.key");
