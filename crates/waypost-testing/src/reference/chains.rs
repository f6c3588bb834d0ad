//! Opaque chains: graphs with a shared state and routes.

pub(super) mod drive;
mod play;
mod run;

pub use play::play;
