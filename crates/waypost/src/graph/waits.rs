//! Waits of a step: for a time, an answer, a signal, and for the earliest of several.

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
use crate::engine::pending_wait::WaitEnd;
use crate::record::{Wait, WaitKind};

/// A wait with a time up to this long stays in memory. For a longer one the step is suspended, and the run is due again
/// at that time.
pub const SLEEP_IN_MEMORY_MAX: Duration = Duration::from_secs(30);

impl Context {
    /// Sleeps for `time`, crashes and stops included: the end is set when this is first called with `key`.
    ///
    /// Beyond [`SLEEP_IN_MEMORY_MAX`] the step is suspended: if nothing else is to be done, the session ends as waiting,
    /// and a resume after the end goes on.
    ///
    /// # Errors
    /// What cannot be kept, and a second call with `key`, as for [`once`](Self::once).
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

    /// Asks a person, and returns the answer once there is one.
    ///
    /// The step is suspended meanwhile and starts again from its top; this call then returns at once. Other work of the
    /// step, as in `tokio::join!`, comes to its end before that. A step that
    /// [must not be repeated](super::Builder::not_idempotent) is in doubt instead. `question` is shown
    /// as it is; the answer is given with [`Engine::answer`](crate::Engine::answer). An answer counts only for the question
    /// that was shown: a rerun that asks another question under `key` gets no earlier answer. An answer that is no `T` is
    /// not taken: the question is asked again, as another one.
    ///
    /// # Errors
    /// What cannot be kept, and a second call with `key`, as for [`once`](Self::once).
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

    /// As [`interrupt`](Self::interrupt), for at most `time`: then `None`, also if an answer comes later.
    ///
    /// The deadline is set when the question is first asked, and does not move when the process dies.
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

    /// Asks several questions at once, each under a key of its own, and returns the answers in the order of the questions
    /// once all are answered.
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
        // Polled in place: with wakers of their own, other work of the step could not be seen.
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
        claims.into_iter().for_each(Claim::keep);
        Ok(answers)
    }

    /// Waits for the next signal `name` to this run that nobody has taken, and returns its value. One whose value is no
    /// `T` is passed over, and the next one waited for.
    ///
    /// # Errors
    /// What was kept cannot be read; a second call with `key`, as for [`once`](Self::once).
    pub async fn signal<T: DeserializeOwned>(&self, key: &str, name: &str) -> Result<T, StepError> {
        let claim = self.claim("signal", key)?;
        let value = self.message(&Call::signal(key, name)).await?;
        claim.keep();
        Ok(value)
    }

    /// As [`signal`](Self::signal), for at most `time`: then `None`. A signal that is sent later stays for the next wait.
    ///
    /// The deadline is set when this is first called with `key`, and does not move when the process dies.
    ///
    /// # Errors
    /// As [`signal`](Self::signal); what cannot be kept.
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

    /// Waits for a message until a deadline of its own. That the deadline has passed is kept: a message that comes later
    /// changes nothing for a step that starts again.
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
                    WaitEnd::Given(value) => value,
                    WaitEnd::Due => return Ok(None),
                },
            };
            match decode(&key, value) {
                Ok(message) => return Ok(Some(message)),
                // It was given and has been taken in: only another question can have another answer.
                Err(_) => {
                    asked += 1;
                    key = format!("{} (asked {asked} times)", call.key);
                }
            }
        }
    }

    /// Returns the time that was set when this was first called with `key`: at most `time` from now, also if the clock was
    /// set back since.
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
    /// Another call of this kind has the key, or has returned a result under it: one answer would count for two questions.
    pub(super) fn claim(&self, call: &'static str, key: &str) -> Result<Claim<'_>, StepError> {
        let keys = &self.waits().keys;
        let claimed = CallKey { call, key: key.to_owned() };
        if keys.insert(claimed.clone()) {
            return Ok(Claim { keys, claimed: Some(claimed) });
        }
        Err(StepError::fatal(format!(
            "cannot use key `{key}` of `{call}` twice in one attempt of step `{}`: each call needs a key of its own",
            self.step()
        )))
    }
}

/// What a call waits for.
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

    /// Its keys are not those of questions.
    fn signal(key: &str, name: &str) -> Self {
        Self { key: format!("signal/{key}"), on: WaitKind::Signal(name.to_owned()), question: None }
    }
}

/// The keys that calls of an attempt use, by the name of the call.
#[derive(Debug, Default)]
pub(super) struct Keys(Mutex<HashSet<CallKey>>);

/// The key of a call in an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CallKey {
    call: &'static str,
    key: String,
}

impl Keys {
    fn insert(&self, key: CallKey) -> bool {
        self.keys().insert(key)
    }

    fn keys(&self) -> MutexGuard<'_, HashSet<CallKey>> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}

/// A key in use by a call. A call that is dropped, or fails, gives the key back.
pub(super) struct Claim<'a> {
    keys: &'a Keys,
    claimed: Option<CallKey>,
}

impl Claim<'_> {
    /// Keeps the key from other calls: the call has a result.
    pub(super) fn keep(mut self) {
        self.claimed = None;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some(claimed) = self.claimed.take() {
            self.keys.keys().remove(&claimed);
        }
    }
}
