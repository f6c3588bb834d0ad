//! Tests of what tests are made with: a rig that sees nothing would let everything pass.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod damage;
mod differential;
mod disk_faults;
mod disk_like_real;
mod disk_losses;
mod disk_states;
mod planted;
mod reference;
