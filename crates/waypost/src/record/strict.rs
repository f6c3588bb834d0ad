//! Lossless JSON encoding of a state: values that JSON would change are refused, and the field is named.
//!
//! JSON is smaller than Rust: it has no NaN, a single null, only text keys, and readers with limits.
//! [`encode`] refuses values that `serde_json` would silently change, or could not read back:
//!
//! | in the state | what JSON would make of it |
//! |---|---|
//! | NaN, infinity, also as a key | `null` |
//! | `Some` of a value written as null: `Some(None)`, `Some(())`, `Some(Value::Null)` | `None` |
//! | `i128`, `u128` beyond 64 bits | a float, if a reader buffers it: migrations, `flatten`, untagged enums |
//! | two keys that are the same text, also by `flatten` | one of the two values |
//! | keys that are neither text, numbers, bools nor unit variants | an error |
//! | containers in containers, deeper than [`STATE_DEPTH_MAX`] | written, and never read again |
//! | more than [`STATE_BYTES_MAX`] | too much for a step; stopped during the write, not after |
//!
//! Hash sets and hash maps are written in the order of their texts, so that equal states are equal bytes.
//!
//! The encoder makes a single pass without tracking the path. On an error it derives the field from the
//! unfinished text. `serde_json` formats numbers and strings that need escapes; this module writes the
//! structure around them.
//!
//! Not detected: a type whose `Deserialize` does not match its `Serialize`. Examples: an untagged enum with a
//! greedy earlier variant, and a field that is not read. [`check_state`](crate::schema::check_state) detects most of these; a session of
//! a graph runs the same check on some of its states. The text of a [`RawValue`](serde_json::value::RawValue)
//! is taken as is.

use std::fmt::{self, Display, Write as _};
use std::io;

use serde::ser::{self, Serialize, Serializer};

use super::{Flaw, STATE_BYTES_MAX};
use crate::json::path::{FieldPath, unfinished};

mod key;
mod unordered;

use key::{Entries, Keys};

/// Deepest nesting of objects and arrays: `serde_json` refuses a 128th level, as protection of the stack.
pub const STATE_DEPTH_MAX: u32 = 127;

/// The struct name of a serialized `RawValue`: verbatim JSON text.
pub(super) const RAW_VALUE: &str = "$serde_json::private::RawValue";
/// The names of verbatim text: of a `RawValue`, and of a `Number` under `arbitrary_precision`. No user struct has
/// fields with these names.
const VERBATIM: [&str; 2] = [RAW_VALUE, "$serde_json::private::Number"];

/// Appends the JSON of `state` to `bytes`.
///
/// A failure changes nothing else: the newest committed checkpoint stays.
///
/// # Errors
/// `bytes` is restored to its previous content.
/// - [`Flaw::Unkept`]: JSON would change the named field, for the given reason. Change the state.
/// - [`Flaw::Limit`]: the state exceeds [`STATE_BYTES_MAX`]. Detected during the write: memory use stays
///   within the limit.
pub fn encode<S: Serialize + ?Sized>(state: &S, bytes: &mut Vec<u8>) -> Result<(), Flaw> {
    let begin = bytes.len();
    let end = begin + STATE_BYTES_MAX;
    let mut text = Text { bytes, begin, end, depth: 0, keys: Keys::default(), scratch: String::new() };
    state.serialize(Strict::new(&mut text)).map_err(|refusal| {
        let path = unfinished(&bytes[begin..]);
        bytes.truncate(begin);
        refusal.at(path)
    })
}

/// Converts a value to a JSON value without loss.
///
/// # Errors
/// As [`encode`].
pub(crate) fn to_value<S: Serialize + ?Sized>(value: &S) -> Result<serde_json::Value, Flaw> {
    let mut bytes = Vec::new();
    encode(value, &mut bytes)?;
    // Text from `encode` always parses, except for text from a `RawValue`.
    serde_json::from_slice(&bytes).map_err(|error| Flaw::Malformed(error.to_string()))
}

/// Why a state is refused.
#[derive(Debug)]
struct Refusal(Box<RefusalCause>);

#[derive(Debug)]
enum RefusalCause {
    TooLarge,
    Field(String),
}

impl Refusal {
    #[cold]
    fn new(why: impl Into<String>) -> Self {
        Self(Box::new(RefusalCause::Field(why.into())))
    }

    #[cold]
    fn too_large() -> Self {
        Self(Box::new(RefusalCause::TooLarge))
    }

    fn at(self, path: FieldPath) -> Flaw {
        match *self.0 {
            RefusalCause::Field(why) => Flaw::Unkept { path, why },
            RefusalCause::TooLarge => Flaw::Limit(format!(
                "the state exceeds {STATE_BYTES_MAX} bytes (at {path}): keep large data in files and their \
                 hashes in the state"
            )),
        }
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            RefusalCause::TooLarge => f.write_str("too large"),
            RefusalCause::Field(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Refusal {}

impl ser::Error for Refusal {
    fn custom<T: Display>(why: T) -> Self {
        Self::new(why.to_string())
    }
}

/// The text so far; all serialisers of the pass write to it.
struct Text<'b> {
    bytes: &'b mut Vec<u8>,
    /// The offset of the state in `bytes`.
    begin: usize,
    /// The limit of the length of `bytes`.
    end: usize,
    depth: u32,
    keys: Keys,
    /// Buffer for values with only a `Display`; kept to reuse its allocation.
    scratch: String,
}

impl Text<'_> {
    #[inline]
    fn push(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        if piece.len() > self.remaining() {
            return Err(Refusal::too_large());
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    #[inline]
    fn remaining(&self) -> usize {
        self.end - self.bytes.len()
    }

    /// Writes a number, a bool or a string as `serde_json` does.
    fn scalar<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refusal> {
        serde_json::to_writer(self, value).map_err(|_| Refusal::too_large())
    }

    /// Writes a string. Most strings need no escape and are copied whole.
    #[inline]
    fn string(&mut self, value: &str) -> Result<(), Refusal> {
        if needs_escape(value) || value.len() + 2 > self.remaining() {
            return self.scalar(value);
        }
        self.bytes.reserve(value.len() + 2);
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(b'"');
        Ok(())
    }

    fn float(
        &mut self,
        value: f64,
        write: impl FnOnce(&mut Self) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if value.is_nan() {
            Err(Refusal::new("JSON has no NaN"))
        } else if value.is_infinite() {
            Err(Refusal::new("JSON has no infinite number"))
        } else {
            write(self)
        }
    }

    fn wide(&mut self, value: impl Display + Copy + TryInto<u64> + TryInto<i64>) -> Result<(), Refusal> {
        if let Ok(value) = TryInto::<u64>::try_into(value) {
            self.scalar(&value)
        } else if let Ok(value) = TryInto::<i64>::try_into(value) {
            self.scalar(&value)
        } else {
            Err(Refusal::new(format!("{value} needs more than 64 bits: keep it as text")))
        }
    }

    /// Formats `value` and passes the text to `write`.
    fn printed<T: Display + ?Sized>(
        &mut self,
        value: &T,
        write: impl FnOnce(&mut Self, &str) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let mut capped = Capped { text: &mut scratch, remaining: self.remaining(), full: false };
        let answer = match write!(capped, "{value}") {
            Ok(()) => write(self, &scratch),
            Err(_) if capped.full => Err(Refusal::too_large()),
            Err(fmt::Error) => Err(Refusal::new("the value cannot be printed")),
        };
        self.scratch = scratch;
        answer
    }

    #[inline]
    fn open(&mut self, bracket: &[u8]) -> Result<(), Refusal> {
        if self.depth == STATE_DEPTH_MAX {
            return Err(Refusal::new(format!(
                "the value is nested deeper than {STATE_DEPTH_MAX} levels, the maximum for reading"
            )));
        }
        self.push(bracket)?;
        self.depth += 1;
        Ok(())
    }

    #[inline]
    fn close(&mut self, bracket: &[u8]) -> Result<(), Refusal> {
        self.depth -= 1;
        self.push(bracket)
    }

    /// Opens the object around the content of an enum's variant.
    #[inline]
    fn open_variant(&mut self, variant: &str) -> Result<(), Refusal> {
        self.open(b"{")?;
        self.string(variant)?;
        self.push(b":")
    }
}

/// Returns whether a text needs escapes. Scans the whole text, as this vectorizes.
#[inline]
fn needs_escape(text: &str) -> bool {
    let escaped = |byte: u8| (byte < 0x20) | (byte == b'"') | (byte == b'\\');
    text.bytes().fold(false, |found, byte| found | escaped(byte))
}

/// The writer for `serde_json`. Its error is never shown: the only cause is the size limit.
impl io::Write for &mut Text<'_> {
    #[inline]
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.write_all(piece)?;
        Ok(piece.len())
    }

    #[inline]
    fn write_all(&mut self, piece: &[u8]) -> io::Result<()> {
        self.push(piece).map_err(|_| io::ErrorKind::FileTooLarge.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A buffer limited to the remaining size of the state.
struct Capped<'s> {
    text: &'s mut String,
    remaining: usize,
    full: bool,
}

impl fmt::Write for Capped<'_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        if piece.len() > self.remaining - self.text.len() {
            self.full = true;
            return Err(fmt::Error);
        }
        self.text.push_str(piece);
        Ok(())
    }
}

/// Serialiser of one value.
struct Strict<'t, 'b> {
    text: &'t mut Text<'b>,
    /// The value is inside a `Some`, so null is refused.
    in_some: bool,
    /// The value is text that is already JSON.
    verbatim: bool,
}

impl<'t, 'b> Strict<'t, 'b> {
    #[inline]
    fn new(text: &'t mut Text<'b>) -> Self {
        Self { text, in_some: false, verbatim: false }
    }

    #[inline]
    fn null(&mut self) -> Result<(), Refusal> {
        if self.in_some {
            return Err(Refusal::new("a `Some` written as null would be read as `None`"));
        }
        self.text.push(b"null")
    }
}

macro_rules! scalars {
    ($($method:ident($type:ty))*) => {$(
        #[inline]
        fn $method(self, value: $type) -> Result<(), Refusal> {
            self.text.scalar(&value)
        }
    )*};
}

impl<'t, 'b> Serializer for Strict<'t, 'b> {
    type Ok = ();
    type Error = Refusal;
    type SerializeSeq = List<'t, 'b>;
    type SerializeTuple = List<'t, 'b>;
    type SerializeTupleStruct = List<'t, 'b>;
    type SerializeTupleVariant = List<'t, 'b>;
    type SerializeMap = Entries<'t, 'b>;
    type SerializeStruct = Fields<'t, 'b>;
    type SerializeStructVariant = Fields<'t, 'b>;

    scalars! {
        serialize_bool(bool) serialize_char(char)
        serialize_i8(i8) serialize_i16(i16) serialize_i32(i32) serialize_i64(i64)
        serialize_u8(u8) serialize_u16(u16) serialize_u32(u32) serialize_u64(u64)
    }

    fn serialize_i128(self, value: i128) -> Result<(), Refusal> {
        self.text.wide(value)
    }

    fn serialize_u128(self, value: u128) -> Result<(), Refusal> {
        self.text.wide(value)
    }

    fn serialize_f32(self, value: f32) -> Result<(), Refusal> {
        self.text.float(value.into(), |text| text.scalar(&value))
    }

    fn serialize_f64(self, value: f64) -> Result<(), Refusal> {
        self.text.float(value, |text| text.scalar(&value))
    }

    fn serialize_str(mut self, value: &str) -> Result<(), Refusal> {
        match (self.verbatim, value) {
            (false, _) => self.text.string(value),
            (true, "null") => self.null(),
            (true, _) => self.text.push(value.as_bytes()),
        }
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Refusal> {
        use ser::SerializeSeq as _;
        let mut list = self.serialize_seq(Some(value.len()))?;
        for byte in value {
            list.serialize_element(byte)?;
        }
        list.end()
    }

    fn serialize_none(mut self) -> Result<(), Refusal> {
        self.null()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Refusal> {
        value.serialize(Self { in_some: true, ..self })
    }

    fn serialize_unit(mut self) -> Result<(), Refusal> {
        self.null()
    }

    fn serialize_unit_struct(mut self, _: &'static str) -> Result<(), Refusal> {
        self.null()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Refusal> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Refusal> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Refusal> {
        self.text.open_variant(variant)?;
        value.serialize(Strict::new(self.text))?;
        self.text.close(b"}")
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<List<'t, 'b>, Refusal> {
        self.text.open(b"[")?;
        Ok(List { text: self.text, first: true, close: &[b"]"] })
    }

    fn serialize_tuple(self, length: usize) -> Result<List<'t, 'b>, Refusal> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_struct(self, _: &'static str, length: usize) -> Result<List<'t, 'b>, Refusal> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<List<'t, 'b>, Refusal> {
        self.text.open_variant(variant)?;
        Ok(List { close: &[b"]", b"}"], ..self.serialize_seq(Some(length))? })
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries<'t, 'b>, Refusal> {
        Entries::open(self.text)
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Fields<'t, 'b>, Refusal> {
        if VERBATIM.contains(&name) {
            return Ok(Fields { text: self.text, first: true, close: &[], verbatim: Some(self.in_some) });
        }
        self.text.open(b"{")?;
        Ok(Fields { text: self.text, first: true, close: &[b"}"], verbatim: None })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Fields<'t, 'b>, Refusal> {
        self.text.open_variant(variant)?;
        Ok(Fields { close: &[b"}", b"}"], ..self.serialize_struct(variant, length)? })
    }

    fn collect_seq<I>(self, elements: I) -> Result<(), Refusal>
    where
        I: IntoIterator<Item: Serialize>,
    {
        let mut list = self.serialize_seq(None)?;
        if unordered::is_unordered::<I>() {
            return unordered::set(list, elements);
        }
        elements.into_iter().try_for_each(|element| list.element(&element))?;
        list.finish()
    }

    fn collect_map<K: Serialize, V: Serialize, I>(self, entries: I) -> Result<(), Refusal>
    where
        I: IntoIterator<Item = (K, V)>,
    {
        use ser::SerializeMap as _;
        if unordered::is_unordered::<I>() {
            return unordered::map(self.text, entries);
        }
        let mut map = self.serialize_map(None)?;
        entries.into_iter().try_for_each(|(key, value)| map.serialize_entry(&key, &value))?;
        map.end()
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<(), Refusal> {
        self.text.printed(value, |text, printed| text.string(printed))
    }

    fn is_human_readable(&self) -> bool {
        true
    }
}

/// Serialiser of an array.
struct List<'t, 'b> {
    text: &'t mut Text<'b>,
    first: bool,
    close: &'static [&'static [u8]],
}

impl List<'_, '_> {
    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refusal> {
        if !std::mem::take(&mut self.first) {
            self.text.push(b",")?;
        }
        value.serialize(Strict::new(self.text))
    }

    fn finish(self) -> Result<(), Refusal> {
        self.close.iter().try_for_each(|bracket| self.text.close(bracket))
    }
}

macro_rules! list {
    ($($compound:ident $method:ident)*) => {$(
        impl ser::$compound for List<'_, '_> {
            type Ok = ();
            type Error = Refusal;

            #[inline]
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refusal> {
                self.element(value)
            }

            fn end(self) -> Result<(), Refusal> {
                self.finish()
            }
        }
    )*};
}

list! {
    SerializeSeq serialize_element
    SerializeTuple serialize_element
    SerializeTupleStruct serialize_field
    SerializeTupleVariant serialize_field
}

/// Serialiser of the fields of a struct, whose names are fixed by the type.
struct Fields<'t, 'b> {
    text: &'t mut Text<'b>,
    first: bool,
    close: &'static [&'static [u8]],
    /// The struct is a marker around text that is already JSON; the flag is `in_some`.
    verbatim: Option<bool>,
}

impl Fields<'_, '_> {
    fn field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Refusal> {
        if let Some(in_some) = self.verbatim {
            return value.serialize(Strict { text: self.text, in_some, verbatim: true });
        }
        if !std::mem::take(&mut self.first) {
            self.text.push(b",")?;
        }
        self.text.string(name)?;
        self.text.push(b":")?;
        value.serialize(Strict::new(self.text))
    }

    fn finish(self) -> Result<(), Refusal> {
        self.close.iter().try_for_each(|bracket| self.text.close(bracket))
    }
}

macro_rules! fields {
    ($($compound:ident)*) => {$(
        impl ser::$compound for Fields<'_, '_> {
            type Ok = ();
            type Error = Refusal;

            #[inline]
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), Refusal> {
                self.field(name, value)
            }

            fn end(self) -> Result<(), Refusal> {
                self.finish()
            }
        }
    )*};
}

fields! { SerializeStruct SerializeStructVariant }
