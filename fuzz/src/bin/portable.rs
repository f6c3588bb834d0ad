//! A file for `waypost import`. What was read is written again as the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use waypost::store::portable::Portable;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(portable) = Portable::from_text(bytes) {
        assert_eq!(portable.to_text(), bytes);
    }
});
