//! Serialiser of maps: converts keys to text, and refuses duplicate texts.

use std::fmt::Display;
use std::ops::Range;

use serde::ser::{Impossible, Serialize, SerializeMap, Serializer};

use super::{Refusal, Strict, Text};
use crate::json::path::quoted;

/// Up to this many keys are compared pairwise, without an allocation; more keys are sorted.
const KEYS_COMPARED_MAX: usize = 8;

/// Serialiser of a map.
///
/// Keys in rising order, as from a `BTreeMap` with text keys, cannot be equal. Other maps are checked at
/// their end.
pub(super) struct Entries<'t, 'b> {
    text: &'t mut Text<'b>,
    /// The offset of the map in the bytes.
    begin: usize,
    /// The index of the map's first key among the keys of all open maps. Inner maps remove their own keys at
    /// their end.
    first: usize,
    rising: bool,
}

/// The keys of all open maps, outermost first. The maps share a list, to save an allocation per map.
#[derive(Default)]
pub(super) struct Keys {
    /// Ranges of the keys in the state's bytes; 32 bits, as this halves the memory for maps with millions of
    /// keys.
    places: Vec<Range<u32>>,
}

impl<'t, 'b> Entries<'t, 'b> {
    #[inline]
    pub(super) fn open(text: &'t mut Text<'b>) -> Result<Self, Refusal> {
        let (begin, first) = (text.bytes.len(), text.keys.places.len());
        text.open(b"{")?;
        Ok(Self { text, begin, first, rising: true })
    }

    pub(super) fn text(&self) -> &Text<'b> {
        self.text
    }

    fn places(&self) -> &[Range<u32>] {
        &self.text.keys.places[self.first..]
    }

    #[inline]
    fn key(&self, place: &Range<u32>) -> &[u8] {
        &self.text.bytes[self.text.begin + place.start as usize..self.text.begin + place.end as usize]
    }

    #[inline]
    fn offset(&self) -> u32 {
        u32::try_from(self.text.bytes.len() - self.text.begin).expect("no state has 4 GiB")
    }

    /// Returns a key that occurs more than once.
    fn twice(&self) -> Option<&[u8]> {
        let places = self.places();
        if places.len() <= KEYS_COMPARED_MAX {
            return places.iter().enumerate().find_map(|(count, place)| {
                let key = self.key(place);
                places[..count].iter().any(|before| self.key(before) == key).then_some(key)
            });
        }
        // Numbers sort several times as fast as texts; texts are compared only if the numbers are equal.
        let mut keys: Vec<(u64, &[u8])> =
            places.iter().map(|place| self.key(place)).map(|key| (print(key), key)).collect();
        keys.sort_unstable();
        keys.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].1)
    }
}

/// Hashes a text to a number. A weak hash costs only sorting time.
fn print(text: &[u8]) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    text.chunks(8).fold(0, |print: u64, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (print.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(ODD)
    })
}

impl SerializeMap for Entries<'_, '_> {
    type Ok = ();
    type Error = Refusal;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Refusal> {
        if !self.places().is_empty() {
            self.text.push(b",")?;
        }
        let begin = self.offset();
        key.serialize(Key { text: self.text })?;
        let place = begin..self.offset();
        self.rising =
            self.rising && self.places().last().is_none_or(|before| self.key(before) < self.key(&place));
        self.text.keys.places.push(place);
        self.text.push(b":")
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refusal> {
        value.serialize(Strict::new(self.text))
    }

    fn end(self) -> Result<(), Refusal> {
        let twice = if self.rising { None } else { self.twice() };
        if let Some(key) = twice {
            let key = serde_json::from_slice::<String>(key).expect("a key was written as a string");
            // Truncate to the map, so that the error path names the map as a whole.
            self.text.bytes.truncate(self.begin);
            return Err(Refusal::new(format!("two of its keys are {}", quoted(&key))));
        }
        self.text.keys.places.truncate(self.first);
        self.text.close(b"}")
    }
}

/// Serialiser of a key: any key becomes a string.
struct Key<'t, 'b> {
    text: &'t mut Text<'b>,
}

impl Key<'_, '_> {
    fn in_quotes(self, write: impl FnOnce(&mut Text<'_>) -> Result<(), Refusal>) -> Result<(), Refusal> {
        self.text.push(b"\"")?;
        write(self.text)?;
        self.text.push(b"\"")
    }
}

fn no_key(what: &str) -> Refusal {
    Refusal::new(format!("a key is {what}, but JSON keys are text"))
}

macro_rules! quoted_keys {
    ($($method:ident($type:ty))*) => {$(
        fn $method(self, key: $type) -> Result<(), Refusal> {
            self.in_quotes(|text| text.scalar(&key))
        }
    )*};
}

macro_rules! refused_keys {
    ($($method:ident($($type:ty),*) -> $answer:ty, $what:literal;)*) => {$(
        fn $method(self, $(_: $type),*) -> Result<$answer, Refusal> {
            Err(no_key($what))
        }
    )*};
}

type None = Impossible<(), Refusal>;

impl Serializer for Key<'_, '_> {
    type Ok = ();
    type Error = Refusal;
    type SerializeSeq = None;
    type SerializeTuple = None;
    type SerializeTupleStruct = None;
    type SerializeTupleVariant = None;
    type SerializeMap = None;
    type SerializeStruct = None;
    type SerializeStructVariant = None;

    quoted_keys! {
        serialize_bool(bool)
        serialize_i8(i8) serialize_i16(i16) serialize_i32(i32) serialize_i64(i64)
        serialize_u8(u8) serialize_u16(u16) serialize_u32(u32) serialize_u64(u64)
    }

    fn serialize_i128(self, key: i128) -> Result<(), Refusal> {
        self.in_quotes(|text| text.wide(key))
    }

    fn serialize_u128(self, key: u128) -> Result<(), Refusal> {
        self.in_quotes(|text| text.wide(key))
    }

    fn serialize_f32(self, key: f32) -> Result<(), Refusal> {
        self.in_quotes(|text| text.float(key.into(), |text| text.scalar(&key)))
    }

    fn serialize_f64(self, key: f64) -> Result<(), Refusal> {
        self.in_quotes(|text| text.float(key, |text| text.scalar(&key)))
    }

    fn serialize_char(self, key: char) -> Result<(), Refusal> {
        self.text.scalar(&key)
    }

    fn serialize_str(self, key: &str) -> Result<(), Refusal> {
        self.text.string(key)
    }

    fn collect_str<T: Display + ?Sized>(self, key: &T) -> Result<(), Refusal> {
        self.text.printed(key, |text, printed| text.scalar(printed))
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Refusal> {
        self.text.scalar(variant)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, key: &T) -> Result<(), Refusal> {
        key.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        key: &T,
    ) -> Result<(), Refusal> {
        key.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), Refusal> {
        Err(no_key("a variant with content"))
    }

    refused_keys! {
        serialize_bytes(&[u8]) -> (), "bytes";
        serialize_none() -> (), "`None`";
        serialize_unit() -> (), "a unit";
        serialize_unit_struct(&'static str) -> (), "a unit";
        serialize_seq(Option<usize>) -> None, "a sequence";
        serialize_tuple(usize) -> None, "a tuple";
        serialize_tuple_struct(&'static str, usize) -> None, "a tuple";
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> None, "a variant with content";
        serialize_map(Option<usize>) -> None, "a map";
        serialize_struct(&'static str, usize) -> None, "a struct";
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> None, "a variant with content";
    }
}
