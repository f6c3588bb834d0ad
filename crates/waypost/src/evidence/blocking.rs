//! Runs blocking file checks on a separate thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Finding;
use super::safe_open::OpenError;

pub(super) fn finding_of(error: OpenError) -> Finding {
    match error {
        OpenError::Missing => Finding::absent("the file does not exist"),
        OpenError::Refused(why) => Finding::failed(why),
        OpenError::Unclear(why) => Finding::unknown(why),
        OpenError::Changing(why) => Finding::unknown_yet(why),
    }
}

/// Runs `work` on a blocking thread, and sets its flag when the caller stops waiting.
pub(super) async fn blocking<T: BlockingResult>(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> T {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let flag = Dropped(Arc::default());
    let seen = Arc::clone(&flag.0);
    match tokio::task::spawn_blocking(move || work(&seen)).await {
        Ok(outcome) => outcome,
        Err(_) => T::cut("the check was interrupted"),
    }
}

/// The result of blocking work, also if its thread was cancelled.
pub(super) trait BlockingResult: Send + 'static {
    fn cut(why: &str) -> Self;
}

impl BlockingResult for Finding {
    fn cut(why: &str) -> Self {
        Self::unknown(why)
    }
}

impl<T: Send + 'static> BlockingResult for Result<T, OpenError> {
    fn cut(why: &str) -> Self {
        Err(OpenError::Unclear(why.to_owned()))
    }
}
