//! Steps, their retries, checks and hooks, and steps over items.

pub(crate) mod foreach;
pub(crate) mod hooks;
pub(crate) mod map;
pub(crate) mod retry;
pub(crate) mod step;
pub(crate) mod validate;
