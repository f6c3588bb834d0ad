//! Opaque chains: the graphs whose steps share one state and choose the next step.

pub(super) mod drive;
mod play;
mod run;

pub use play::play;
