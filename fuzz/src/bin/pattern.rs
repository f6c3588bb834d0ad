//! The subject of a claim about files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use waypost::evidence::{check_pattern, is_pattern, literal_path};

fuzz_target!(|subject: &str| {
    if check_pattern(subject).is_ok() && !is_pattern(subject) {
        drop(literal_path(subject));
    }
});
