//! Converts panics of the caller's functions into errors, so that the run survives.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the result of `ask`, or the message of its panic.
///
/// The caller must drop values that `ask` may have left half changed.
///
/// # Errors
/// The message of the panic.
pub(crate) fn unpanicked<T>(ask: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(ask)).map_err(|panic| panic_message(panic.as_ref()))
}

/// Returns the message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("the panic payload is not text").to_owned()
}
