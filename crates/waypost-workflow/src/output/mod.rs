//! Outputs of a step: the file `$WAYPOST_OUTPUT`, the standard output, values of JSON files.
//!
//! Pure functions from bytes to values. Does not know the origin of the bytes, nor masking.

mod capture;
mod file;
mod path;

pub use self::capture::{CAPTURE_BYTES_MAX, Capture, CaptureError};
pub use self::file::{
    OUTPUT_BYTES_MAX, OUTPUT_COUNT_MAX, OUTPUT_NAME_BYTES_MAX, OutputError, Written, is_output_name,
    parse_output_file,
};
pub(crate) use self::path::file_text;
pub use self::path::{PathError, value_at, value_in};
pub use waypost::json_path::JsonPath;
