//! The language of expectations, and the size of values in records.

pub(crate) mod decimal;
pub(crate) mod expect;
pub(crate) mod expected;
pub(crate) mod observed;
