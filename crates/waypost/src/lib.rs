//! Long work that survives: durable runs, checkpoints with evidence, and an exact resume.

pub mod lock;
