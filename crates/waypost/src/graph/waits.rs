//! Waits of a step: for a time, an answer, a signal, or the earliest of several.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::maybe_done;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::context::{Context, decode, keepable};
use super::error::StepError;
use crate::engine::session::pending_wait::WaitEnd;
use crate::record::{Wait, WaitKind};

/// The longest wait that stays in memory. For a longer wait the step is suspended, and the run is due again at
/// the deadline.
pub const SLEEP_IN_MEMORY_MAX: Duration = Duration::from_secs(30);

impl Context {
    /// Sleeps for `time`. The first call with `key` sets the deadline, and crashes or stops do not move it.
    ///
    /// Beyond [`SLEEP_IN_MEMORY_MAX`] the step is suspended. If nothing else can run, the session ends as
    /// waiting, and a resume after the deadline continues.
    ///
    /// # Errors
    /// As for [`once`](Self::once): a value that cannot be stored, and a second call with `key`.
    pub async fn sleep(&self, key: &str, time: Duration) -> Result<(), StepError> {
        let claim = self.claim("sleep", key)?;
        let key = format!("sleep/{key}");
        let due = self.deadline(&key, time).await?;
        if due > self.now() {
            self.pause(self.attempt_of().make_wait(&key, WaitKind::Until(due), None)).await;
        }
        claim.keep();
        Ok(())
    }

    /// Asks a person, and returns the answer.
    ///
    /// `question` is shown unchanged, and [`Engine::answer`](crate::Engine::answer) provides the answer.
    /// Meanwhile the step is suspended; on an answer the step runs again from the top, and this call returns at
    /// once. Other work of the step, as in `tokio::join!`, finishes before the suspension. A
    /// [`not_idempotent`](super::Builder::not_idempotent) step is in doubt instead.
    ///
    /// An answer counts only for the question that was shown. A rerun that asks another question under `key` gets
    /// no earlier answer. An answer that is not a `T` is rejected, and the question is asked again as a new
    /// question.
    ///
    /// # Errors
    /// As for [`once`](Self::once): a value that cannot be stored, and a second call with `key`.
    pub async fn interrupt<T: DeserializeOwned>(
        &self,
        key: &str,
        question: impl Serialize,
    ) -> Result<T, StepError> {
        let claim = self.claim("interrupt", key)?;
        let answer = self.message(&Call::question(key, question)?).await?;
        claim.keep();
        Ok(answer)
    }

    /// As [`interrupt`](Self::interrupt), for at most `time`: then `None`, even if an answer arrives later.
    ///
    /// The first call sets the deadline; a crash does not move the deadline.
    ///
    /// # Errors
    /// As [`interrupt`](Self::interrupt).
    pub async fn interrupt_within<T: DeserializeOwned>(
        &self,
        key: &str,
        question: impl Serialize,
        time: Duration,
    ) -> Result<Option<T>, StepError> {
        let claim = self.claim("interrupt", key)?;
        let answer = self.message_within(Call::question(key, question)?, time).await?;
        claim.keep();
        Ok(answer)
    }

    /// Asks several questions in parallel, each under its own key. Returns the answers in the order of the
    /// questions, once all are answered.
    ///
    /// # Errors
    /// As [`interrupt`](Self::interrupt).
    pub async fn interrupt_all<T: DeserializeOwned, K: AsRef<str>, Q: Serialize>(
        &self,
        questions: impl IntoIterator<Item = (K, Q)>,
    ) -> Result<Vec<T>, StepError> {
        let (mut claims, mut asked) = (Vec::new(), Vec::new());
        for (key, question) in questions {
            claims.push(self.claim("interrupt", key.as_ref())?);
            asked.push(Call::question(key.as_ref(), question)?);
        }
        let mut calls: Vec<_> =
            asked.iter().map(|call| Box::pin(maybe_done(self.message::<T>(call)))).collect();
        // Polled in place: separate wakers would hide the other work of the step.
        poll_fn(|context| {
            let mut is_ready = true;
            for call in &mut calls {
                is_ready &= call.as_mut().poll(context).is_ready();
            }
            if is_ready { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let ends = calls.iter_mut().map(|call| call.as_mut().take_output().expect("each call is done"));
        let answers = ends.collect::<Result<Vec<T>, StepError>>()?;
        claims.into_iter().for_each(KeyGuard::keep);
        Ok(answers)
    }

    /// Waits for the next unconsumed signal `name` to this run, and returns its value. A signal whose value is
    /// not a `T` is skipped.
    ///
    /// # Errors
    /// A stored value that cannot be decoded; a second call with `key`, as for [`once`](Self::once).
    pub async fn signal<T: DeserializeOwned>(&self, key: &str, name: &str) -> Result<T, StepError> {
        let claim = self.claim("signal", key)?;
        let value = self.message(&Call::signal(key, name)).await?;
        claim.keep();
        Ok(value)
    }

    /// As [`signal`](Self::signal), for at most `time`: then `None`. A later signal stays queued for the next
    /// wait.
    ///
    /// The first call with `key` sets the deadline; a crash does not move the deadline.
    ///
    /// # Errors
    /// As [`signal`](Self::signal); a value that cannot be stored.
    pub async fn signal_within<T: DeserializeOwned>(
        &self,
        key: &str,
        name: &str,
        time: Duration,
    ) -> Result<Option<T>, StepError> {
        let claim = self.claim("signal", key)?;
        let value = self.message_within(Call::signal(key, name), time).await?;
        claim.keep();
        Ok(value)
    }

    async fn message<T: DeserializeOwned>(&self, call: &Call) -> Result<T, StepError> {
        match self.message_until(call, None).await? {
            Some(message) => Ok(message),
            None => unreachable!("a wait without a deadline ends with a message"),
        }
    }

    /// Waits for a message until a deadline. The expiry is stored: a later message changes nothing for a
    /// restarted step.
    async fn message_within<T: DeserializeOwned>(
        &self,
        call: Call,
        time: Duration,
    ) -> Result<Option<T>, StepError> {
        let id = self.attempt_of().wait_id(&call.key, call.question.as_ref());
        let (deadline, passed) = (format!("deadline/{id}"), format!("passed/{id}"));
        if self.kept(&passed).await?.is_some() {
            return Ok(None);
        }
        let due = self.deadline(&deadline, time).await?;
        let message = self.message_until(&call, Some(due)).await?;
        if message.is_none() {
            self.keep(&passed, Value::Bool(true)).await?;
        }
        Ok(message)
    }

    async fn message_until<T: DeserializeOwned>(
        &self,
        call: &Call,
        until: Option<Timestamp>,
    ) -> Result<Option<T>, StepError> {
        let attempt = self.attempt_of();
        let mut asked = 1;
        let mut key = call.key.clone();
        loop {
            let wait = Wait { until, ..attempt.make_wait(&key, call.on.clone(), call.question.clone()) };
            let value = match attempt.answered(&wait.id).await? {
                Some(value) => value,
                None if until.is_some_and(|until| until <= self.now()) => return Ok(None),
                None => match self.pause(wait).await {
                    WaitEnd::Delivered(value) => value,
                    WaitEnd::Due => return Ok(None),
                },
            };
            match decode(&key, value) {
                Ok(message) => return Ok(Some(message)),
                // The answer is already consumed. Only a new question can get a new answer.
                Err(_) => {
                    asked += 1;
                    key = format!("{} (asked {asked} times)", call.key);
                }
            }
        }
    }

    /// Returns the deadline set by the first call with `key`. The result is at most `time` from now, even if the
    /// clock was set back.
    async fn deadline(&self, key: &str, time: Duration) -> Result<Timestamp, StepError> {
        let latest = self.attempt_of().clock().now().checked_add(time).unwrap_or(Timestamp::MAX);
        let set: Option<Timestamp> = self.kept(key).await?.map(|value| decode(key, value)).transpose()?;
        if let Some(due) = set.filter(|due| *due <= latest) {
            return Ok(due);
        }
        self.keep(key, serde_json::to_value(latest).map_err(StepError::fatal)?).await?;
        Ok(latest)
    }

    async fn pause(&self, wait: Wait) -> WaitEnd {
        let rest =
            wait.due().map(|due| Duration::try_from(due.duration_since(self.now())).unwrap_or_default());
        self.waits().pause(Some(wait), rest.and_then(|rest| Instant::now().checked_add(rest))).await
    }

    fn now(&self) -> Timestamp {
        self.attempt_of().now()
    }

    /// Claims a key for a call.
    ///
    /// # Errors
    /// Another call of the same kind holds the key, or has returned a result under the key: a single answer would
    /// count for two questions.
    pub(super) fn claim(&self, call: &'static str, key: &str) -> Result<KeyGuard<'_>, StepError> {
        let keys = &self.waits().keys;
        let claimed = CallKey { call, key: key.to_owned() };
        if keys.insert(claimed.clone()) {
            return Ok(KeyGuard { keys, claimed: Some(claimed) });
        }
        Err(StepError::fatal(format!(
            "cannot use key `{key}` of `{call}` twice in one attempt of step `{}`: use a unique key",
            self.step()
        )))
    }
}

/// The key, the kind and the question of a wait.
struct Call {
    key: String,
    on: WaitKind,
    question: Option<Value>,
}

impl Call {
    fn question(key: &str, question: impl Serialize) -> Result<Self, StepError> {
        let question = Some(keepable(key, &question)?).filter(|question| !question.is_null());
        Ok(Self { key: key.to_owned(), on: WaitKind::Answer, question })
    }

    /// The prefix separates the keys of signals from those of questions.
    fn signal(key: &str, name: &str) -> Self {
        Self { key: format!("signal/{key}"), on: WaitKind::Signal(name.to_owned()), question: None }
    }
}

/// The keys in use by the calls of an attempt, by the name of the call.
#[derive(Debug, Default)]
pub(super) struct CallKeys(Mutex<HashSet<CallKey>>);

/// The key of a call in an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CallKey {
    call: &'static str,
    key: String,
}

impl CallKeys {
    fn insert(&self, key: CallKey) -> bool {
        self.keys().insert(key)
    }

    fn keys(&self) -> MutexGuard<'_, HashSet<CallKey>> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}

/// A key in use by a call. A dropped or failed call releases the key.
pub(super) struct KeyGuard<'a> {
    keys: &'a CallKeys,
    claimed: Option<CallKey>,
}

impl KeyGuard<'_> {
    /// Keeps the key claimed after the call has returned a result.
    pub(super) fn keep(mut self) {
        self.claimed = None;
    }
}

impl Drop for KeyGuard<'_> {
    fn drop(&mut self) {
        if let Some(claimed) = self.claimed.take() {
            self.keys.keys().remove(&claimed);
        }
    }
}
