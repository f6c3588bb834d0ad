//! The end of a lease, by the time since boot, shared with the process that ends the steps.
//!
//! The deadline is a file in memory. The holder of the lease moves the deadline at each renewal, and the supervisor of the
//! steps reads the file. So a stopped or busy holder has nothing to send, and its steps end in time.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment since boot, suspends of the machine included: a lease ends meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(Duration);

impl BootTime {
    /// Returns the present moment.
    #[must_use]
    pub fn now() -> Self {
        // On macOS, `MONOTONIC` continues during a suspend.
        #[cfg(target_os = "linux")]
        let time = clock_gettime(ClockId::Boottime);
        #[cfg(not(target_os = "linux"))]
        let time = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        Self(Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default()))
    }

    /// Returns the moment after a duration.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// Returns the time since then.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    /// Returns the time until then.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }
}

/// A deadline in a file that other processes can read.
#[derive(Debug)]
pub struct Deadline(File);

impl Deadline {
    /// Makes a deadline.
    ///
    /// # Errors
    /// The system has no files in memory, or no descriptor left.
    pub fn new(at: BootTime) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        let file = rustix::fs::memfd_create("waypost-lease", rustix::fs::MemfdFlags::CLOEXEC)?;
        #[cfg(not(target_os = "linux"))]
        let file = Err(io::Error::from(io::ErrorKind::Unsupported))?;
        let deadline = Self(File::from(file));
        deadline.set(at)?;
        Ok(deadline)
    }

    /// Returns the deadline of a passed descriptor.
    #[must_use]
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self(File::from(descriptor))
    }

    /// Moves the deadline.
    ///
    /// # Errors
    /// The error of the write.
    pub fn set(&self, at: BootTime) -> io::Result<()> {
        let nanoseconds = u64::try_from(at.0.as_nanos()).unwrap_or(u64::MAX);
        self.0.write_all_at(&nanoseconds.to_ne_bytes(), 0)
    }

    /// Returns the deadline.
    ///
    /// # Errors
    /// The error of the read.
    pub fn get(&self) -> io::Result<BootTime> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, 0)?;
        Ok(BootTime(Duration::from_nanos(u64::from_ne_bytes(bytes))))
    }

    /// Returns another descriptor of the deadline, for another process.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn try_clone_descriptor(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_deadline_is_seen_by_every_reader() {
        let now = BootTime::now();
        let deadline = Deadline::new(now.after(Duration::from_secs(60))).unwrap();
        let reader = Deadline::from_descriptor(deadline.try_clone_descriptor().unwrap());

        deadline.set(now.after(Duration::from_secs(5))).unwrap();

        assert_eq!(reader.get().unwrap(), now.after(Duration::from_secs(5)));
        assert_eq!(now.left(), Duration::ZERO);
    }
}
