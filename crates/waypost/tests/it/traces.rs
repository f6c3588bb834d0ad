//! The model played through, record by record, in the cases that break naive designs.

mod chain;
mod scopes;
mod starts;
