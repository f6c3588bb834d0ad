//! The model played through, record by record, in the cases that break naive designs.

mod branches;
mod chain;
mod starts;
