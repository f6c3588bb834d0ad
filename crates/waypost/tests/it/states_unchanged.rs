//! A state reads back unchanged, or is refused with the name of its field.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use proptest::prelude::*;
use serde::ser::SerializeSeq as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use waypost::ScopePath;
use waypost::record::{Body, Flaw, Header, Position, Record, STATE_BYTES_MAX, STATE_DEPTH_MAX, encode};
use waypost::schema::check_state;

use waypost_testing::records::{Links, completed, run_id};

fn written<S: Serialize + ?Sized>(state: &S) -> String {
    let mut bytes = Vec::new();
    encode(state, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn refused<S: Serialize + ?Sized>(state: &S) -> String {
    let mut bytes = b"before".to_vec();
    let flaw = encode(state, &mut bytes).unwrap_err();
    assert!(matches!(flaw, Flaw::Unkept { .. }), "{flaw:?}");
    assert_eq!(bytes, b"before", "what was there is left as it was");
    flaw.to_string()
}

const NAN: &str = "JSON has no NaN";
const NULL: &str = "a `Some` written as null would be read as `None`";

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Priced {
    name: String,
    price: f64,
}

fn priced(price: f64) -> Priced {
    Priced { name: "tea".to_owned(), price }
}

#[test]
fn a_number_that_json_lacks_is_refused_and_its_field_named() {
    #[derive(Serialize)]
    struct Order {
        steps: Vec<Priced>,
    }
    #[derive(Serialize)]
    struct Wrapped(f32);
    #[derive(Serialize)]
    enum Amount {
        One(f64),
        Pair(f64, f64),
        Named { amount: f64 },
    }

    let nan = f64::NAN;
    assert_eq!(
        refused(&Order { steps: vec![priced(1.0), priced(2.0), priced(3.0), priced(nan)] }),
        format!("steps[3].price: {NAN}")
    );
    assert_eq!(refused(&nan), format!("the state: {NAN}"));
    assert_eq!(refused(&[f64::INFINITY]), "[0]: JSON has no infinite number");
    assert_eq!(refused(&(1, f64::NEG_INFINITY)), "[1]: JSON has no infinite number");
    assert_eq!(refused(&Wrapped(f32::NAN)), format!("the state: {NAN}"));
    assert_eq!(refused(&vec![Some(Wrapped(f32::INFINITY))]), "[0]: JSON has no infinite number");
    assert_eq!(refused(&Amount::One(nan)), format!("One: {NAN}"));
    assert_eq!(refused(&Amount::Pair(0.0, nan)), format!("Pair[1]: {NAN}"));
    assert_eq!(refused(&Amount::Named { amount: nan }), format!("Named.amount: {NAN}"));
    assert_eq!(refused(&BTreeMap::from([("a b", nan)])), format!("[\"a b\"]: {NAN}"));
}

#[test]
fn a_number_that_json_lacks_is_found_through_flatten_and_tags() {
    #[derive(Serialize)]
    struct Outer {
        name: &'static str,
        #[serde(flatten)]
        inner: Priced,
    }
    #[derive(Serialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        Priced(Priced),
    }
    #[derive(Serialize)]
    #[serde(tag = "kind", content = "content")]
    enum Beside {
        Price { price: f64 },
    }
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Bare {
        Price(Priced),
    }

    assert_eq!(
        refused(&json!({"a": 1}).as_object().map(|_| Outer { name: "x", inner: priced(f64::NAN) })),
        format!("price: {NAN}")
    );
    assert_eq!(refused(&Tagged::Priced(priced(f64::NAN))), format!("price: {NAN}"));
    assert_eq!(refused(&[Beside::Price { price: f64::NAN }]), format!("[0].content.price: {NAN}"));
    assert_eq!(refused(&Bare::Price(priced(f64::NAN))), format!("price: {NAN}"));
}

/// A float used as a key.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Rate(f64);

impl PartialEq for Rate {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Rate {}

impl std::hash::Hash for Rate {
    fn hash<H: std::hash::Hasher>(&self, hash: &mut H) {
        self.0.to_bits().hash(hash);
    }
}

#[test]
fn a_key_is_text_or_what_can_be_read_back_from_text() {
    #[derive(PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
    enum Colour {
        Red,
    }
    #[derive(PartialEq, Eq, Hash, Serialize)]
    struct Unit;

    fn round<K, V>(map: HashMap<K, V>)
    where
        K: Serialize + serde::de::DeserializeOwned + Eq + std::hash::Hash + fmt::Debug,
        V: Serialize + serde::de::DeserializeOwned + PartialEq + fmt::Debug,
    {
        assert_eq!(serde_json::from_str::<HashMap<K, V>>(&written(&map)).unwrap(), map);
    }
    round(HashMap::from([("a\"\n".to_owned(), 1), (String::new(), 2)]));
    round(HashMap::from([(-3_i8, 1), (7, 2)]));
    round(HashMap::from([(u64::MAX, 1)]));
    round(HashMap::from([(i128::from(i64::MIN), 1), (i128::from(u64::MAX), 2)]));
    round(HashMap::from([(true, 1), (false, 2)]));
    round(HashMap::from([('ß', 1)]));
    round(HashMap::from([(Colour::Red, 1)]));
    round(HashMap::from([(Some("a".to_owned()), 1)]));
    round(HashMap::from([(Rate(0.1), 1), (Rate(-0.0), 2), (Rate(1e300), 3)]));

    let only_text = |what: &str| format!("a key is {what}, but JSON keys are text");
    let at = |path: &str, why: &str| format!("{path}: {why}");
    assert_eq!(refused(&HashMap::from([(Rate(f64::NAN), 1)])), at("the state", NAN));
    assert_eq!(refused(&[HashMap::from([(None::<u8>, 1)])]), at("[0]", &only_text("`None`")));
    assert_eq!(refused(&[HashMap::from([((), 1)])]), at("[0]", &only_text("a unit")));
    assert_eq!(refused(&[HashMap::from([(Unit, 1)])]), at("[0]", &only_text("a unit")));
    assert_eq!(refused(&[HashMap::from([((1, 2), 1)])]), at("[0]", &only_text("a tuple")));
    assert_eq!(refused(&[HashMap::from([(vec![1], 1)])]), at("[0]", &only_text("a sequence")));
    assert_eq!(
        refused(&[HashMap::from([(Ok::<u8, u8>(1), 1)])]),
        at("[0]", &only_text("a variant with content"))
    );
    assert_eq!(
        refused(&BTreeMap::from([("ok", HashMap::from([(u128::MAX, 1)]))])),
        at("ok", &format!("{} needs more than 64 bits: keep it as text", u128::MAX))
    );
}

#[test]
fn keys_that_become_the_same_text_are_refused() {
    /// Different values with the same text.
    #[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
    struct Folded(u8);
    impl Serialize for Folded {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(&(self.0 % 10))
        }
    }
    #[derive(Serialize)]
    struct Outer {
        z: u8,
        name: &'static str,
        #[serde(flatten)]
        rest: BTreeMap<&'static str, u8>,
    }

    assert_eq!(
        refused(&[BTreeMap::from([(Folded(1), 1), (Folded(2), 2), (Folded(11), 3)])]),
        r#"[0]: two of its keys are "1""#
    );
    let many: BTreeMap<Folded, u8> = (0..=10).map(|key| (Folded(key), key)).collect();
    assert_eq!(refused(&many), r#"the state: two of its keys are "0""#);
    let outer = Outer { z: 0, name: "x", rest: BTreeMap::from([("name", 1)]) };
    assert_eq!(refused(&outer), r#"the state: two of its keys are "name""#);
    let distinct = Outer { z: 0, name: "x", rest: BTreeMap::from([("a", 1), ("names", 1)]) };
    assert_eq!(written(&distinct), r#"{"z":0,"name":"x","a":1,"names":1}"#);
    let numbers: BTreeMap<u32, u32> = (0..1_000).map(|key| (key, key)).collect();
    assert_eq!(serde_json::from_str::<BTreeMap<u32, u32>>(&written(&numbers)).unwrap(), numbers);
}

#[test]
fn a_some_that_reads_as_none_is_refused() {
    #[derive(Serialize)]
    struct Unit;
    #[derive(Serialize)]
    struct Wrapped<T>(T);
    #[derive(Serialize)]
    struct Field<T> {
        field: T,
    }
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Bare {
        Nothing,
    }

    let at_field = format!("field: {NULL}");
    assert_eq!(refused(&Field { field: Some(None::<u8>) }), at_field);
    assert_eq!(refused(&Field { field: Some(Some(None::<u8>)) }), at_field);
    assert_eq!(refused(&Field { field: Some(Wrapped(None::<u8>)) }), at_field);
    assert_eq!(refused(&Field { field: Wrapped(Some(Wrapped(()))) }), at_field);
    assert_eq!(refused(&Field { field: Some(Unit) }), at_field);
    assert_eq!(refused(&Field { field: Some(Bare::Nothing) }), at_field);
    assert_eq!(refused(&Field { field: Some(Value::Null) }), at_field);
    assert_eq!(refused(&Field { field: Some(RawValue::from_string("null".to_owned()).unwrap()) }), at_field);

    assert_eq!(written(&Field { field: None::<Option<u8>> }), r#"{"field":null}"#);
    assert_eq!(written(&Field { field: () }), r#"{"field":null}"#);
    assert_eq!(written(&Field { field: Some(vec![None::<u8>]) }), r#"{"field":[null]}"#);
    assert_eq!(written(&Field { field: Some(Field { field: None::<u8> }) }), r#"{"field":{"field":null}}"#);
    assert_eq!(written(&Field { field: Some(Ok::<_, ()>(None::<u8>)) }), r#"{"field":{"Ok":null}}"#);
}

#[test]
fn numbers_of_128_bits_are_kept_for_any_reader() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Wide {
        signed: i128,
        unsigned: u128,
    }
    let edges = Wide { signed: i64::MIN.into(), unsigned: u64::MAX.into() };
    let beyond = Wide { signed: i128::from(i64::MIN) - 1, unsigned: 0 };

    assert_eq!(serde_json::from_str::<Wide>(&written(&edges)).unwrap(), edges);
    assert_eq!(refused(&beyond), "signed: -9223372036854775809 needs more than 64 bits: keep it as text");
    // Why: a buffering reader silently turns the number into a float.
    assert_eq!(serde_json::from_str::<Value>("-9223372036854775809").unwrap(), json!(-9223372036854775809.0));
}

#[test]
fn what_is_nested_too_deep_to_be_read_is_refused() {
    fn nested(levels: u32) -> Value {
        (0..levels)
            .fold(json!(1), |inner, level| if level % 2 == 0 { json!([inner]) } else { json!({"in": inner}) })
    }
    let deepest = nested(STATE_DEPTH_MAX);
    let deeper = nested(STATE_DEPTH_MAX + 1);

    assert_eq!(serde_json::from_str::<Value>(&written(&deepest)).unwrap(), deepest);
    assert!(
        refused(&deeper).ends_with("the value is nested deeper than 127 levels, the maximum for reading")
    );
    // Why: a resume would fail the same way.
    let text = serde_json::to_string(&deeper).unwrap();
    assert!(serde_json::from_str::<Value>(&text).unwrap_err().to_string().starts_with("recursion limit"));
}

/// Bug: a step returned an output of 125 nested arrays, small enough for the header. Cause: headers were written
/// without a depth check, and a header of more than 127 levels cannot be read back. The checkpoint was damaged
/// from its start. Fix: headers, positions and run records get the same checks as states.
#[test]
fn a_header_that_could_not_be_read_again_is_refused() {
    let links = Links::of(&run_id("r"));
    let sealed = |levels: u32| {
        let output = (0..levels).fold(json!(1), |inner, _| json!([inner]));
        Record::seal(Header { phase: completed(output), ..links.header(&ScopePath::main()) }, None)
    };

    let deepest = sealed(STATE_DEPTH_MAX - 4).unwrap();
    assert!(Record::open(deepest.digest(), deepest.header_bytes().to_vec(), None).is_ok());
    let refused = sealed(STATE_DEPTH_MAX - 3).unwrap_err().to_string();
    assert!(refused.starts_with("phase.completed.outputs.result[0][0]"), "{refused}");
}

#[test]
fn a_variant_counts_as_the_levels_that_it_is_written_with() {
    #[derive(Serialize, Deserialize)]
    enum Tree {
        Leaf,
        Node(Box<Tree>),
        Pair(u8, Box<Tree>),
        Named { inner: Box<Tree> },
    }
    fn grow(levels: u32, wrap: fn(Box<Tree>) -> Tree) -> Tree {
        (0..levels).fold(Tree::Leaf, |inner, _| wrap(Box::new(inner)))
    }

    for (levels_each, wrap) in
        [(1, Tree::Node as fn(_) -> _), (2, |tree| Tree::Pair(1, tree)), (2, |inner| Tree::Named { inner })]
    {
        let most = STATE_DEPTH_MAX / levels_each;
        let text = written(&grow(most, wrap));
        assert!(serde_json::from_str::<Tree>(&text).is_ok());
        refused(&grow(most + 1, wrap));
    }
}

#[test]
fn a_state_without_end_is_stopped_while_it_is_written() {
    /// Yields elements without end, and counts them.
    struct Endless<'a>(&'a Cell<usize>);
    impl Serialize for Endless<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut list = serializer.serialize_seq(None)?;
            loop {
                self.0.set(self.0.get() + 1);
                list.serialize_element(&"x".repeat(1 << 16))?;
            }
        }
    }
    /// Prints without end.
    struct Chatter;
    impl fmt::Display for Chatter {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            loop {
                f.write_str(&"x".repeat(1 << 16))?;
            }
        }
    }
    impl Serialize for Chatter {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }
    let asked = Cell::new(0);

    let endless =
        Body::json(&Position::default(), &BTreeMap::from([("log", Endless(&asked))]), 0).unwrap_err();
    let chatter = Body::json(&Position::default(), &[Chatter], 0).unwrap_err();

    assert_eq!(
        endless.to_string(),
        "the state exceeds 67108864 bytes (at log[1023]): keep large data in files and their hashes in the state"
    );
    assert_eq!(asked.get(), STATE_BYTES_MAX / (1 << 16));
    assert!(matches!(chatter, Flaw::Limit(_)));
}

#[test]
fn the_size_limit_counts_the_state_without_its_prefix() {
    let largest = "x".repeat(STATE_BYTES_MAX - 2);
    let larger = "x".repeat(STATE_BYTES_MAX - 1);
    let mut bytes = vec![b' '; 100];

    assert!(encode(&larger, &mut bytes).is_err());
    assert_eq!(bytes.len(), 100);
    assert!(encode(&largest, &mut bytes).is_ok());
    assert_eq!(bytes.len(), 100 + STATE_BYTES_MAX);
}

#[test]
fn what_a_type_itself_refuses_is_named_too() {
    struct Picky;
    impl Serialize for Picky {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("it is locked"))
        }
    }
    struct Unprintable;
    impl fmt::Display for Unprintable {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            Err(fmt::Error)
        }
    }
    impl Serialize for Unprintable {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    assert_eq!(refused(&json!([1, 2]).as_array().map(|_| (1, [Picky]))), "[1][0]: it is locked");
    assert_eq!(refused(&[Unprintable]), "[0]: the value cannot be printed");
}

#[test]
fn text_that_is_json_already_stands_as_it_is() {
    #[derive(Serialize, Deserialize)]
    struct Raw {
        raw: Box<RawValue>,
        maybe: Option<Box<RawValue>>,
    }
    let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();

    let text = written(&Raw { raw: raw("{ \"a\" : 1.50 }"), maybe: Some(raw("[1e999]")) });

    assert_eq!(text, r#"{"raw":{ "a" : 1.50 },"maybe":[1e999]}"#);
    let read: Raw = serde_json::from_str(&text).unwrap();
    assert_eq!(read.raw.get(), "{ \"a\" : 1.50 }");
}

#[test]
fn bytes_are_an_array_of_numbers() {
    struct Bytes(Vec<u8>);
    impl Serialize for Bytes {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&self.0)
        }
    }

    assert_eq!(written(&Bytes(vec![0, 255])), "[0,255]");
    assert_eq!(written(&Some(Bytes(Vec::new()))), "[]");
}

#[test]
fn a_check_finds_what_is_written_and_not_read() {
    #[derive(Serialize, Deserialize)]
    struct Forgetful {
        kept: HashSet<String>,
        #[serde(skip_deserializing)]
        lost: u32,
    }
    #[derive(Serialize, Deserialize)]
    struct Unreadable {
        #[serde(serialize_with = "as_text")]
        count: u32,
    }
    fn as_text<S: Serializer>(count: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(count)
    }
    let kept: HashSet<String> = (0..100).map(|n| n.to_string()).collect();

    assert_eq!(check_state(&Forgetful { kept: kept.clone(), lost: 0 }), Ok(()));
    let lost = check_state(&vec![Forgetful { kept, lost: 3 }]).unwrap_err();
    assert_eq!(lost.to_string(), "[0].lost: written as 3, read back as 0");
    let unread = check_state(&Unreadable { count: 3 }).unwrap_err().to_string();
    let why = "count: the state could not be read back: invalid type: string \"3\", expected u32";
    assert!(unread.starts_with(why), "{unread}");
}

/// A state of many shapes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Nothing,
    Unit(()),
    Flag(bool),
    Small(i8),
    Whole(i64),
    Large(u64),
    Wide(i128),
    Single(f32),
    Double(f64),
    Letter(char),
    Text(String),
    Maybe(Option<Option<i8>>),
    MaybeUnit { inner: Option<()> },
    MaybeFloat(u8, Option<f64>),
    Bytes(Vec<u8>),
    List(Vec<Shape>),
    Pair(Box<(Shape, Shape)>),
    Members(BTreeMap<String, Shape>),
    Numbered(BTreeMap<i16, Shape>),
    Letters(BTreeMap<char, Shape>),
    Rates(Vec<(Rate, u8)>),
    Flat(Flat),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Flat {
    name: String,
    amount: f64,
    #[serde(flatten)]
    rest: BTreeMap<String, f64>,
}

/// Collects every place at which a shape cannot be kept, as a JSON pointer.
fn flaws(shape: &Shape, path: &str, found: &mut Vec<String>) {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    let note = |wrong: bool, at: String, found: &mut Vec<String>| {
        if wrong {
            found.push(at);
        }
    };
    match shape {
        Shape::Wide(n) => {
            note(i64::try_from(*n).is_err() && u64::try_from(*n).is_err(), format!("{path}/Wide"), found)
        }
        Shape::Single(n) => note(!n.is_finite(), format!("{path}/Single"), found),
        Shape::Double(n) => note(!n.is_finite(), format!("{path}/Double"), found),
        Shape::Maybe(maybe) => note(*maybe == Some(None), format!("{path}/Maybe"), found),
        Shape::MaybeUnit { inner } => note(inner.is_some(), format!("{path}/MaybeUnit/inner"), found),
        Shape::MaybeFloat(_, n) => {
            note(n.is_some_and(|n| !n.is_finite()), format!("{path}/MaybeFloat/1"), found)
        }
        Shape::List(shapes) => {
            shapes
                .iter()
                .enumerate()
                .for_each(|(at, shape)| flaws(shape, &format!("{path}/List/{at}"), found));
        }
        Shape::Pair(pair) => {
            flaws(&pair.0, &format!("{path}/Pair/0"), found);
            flaws(&pair.1, &format!("{path}/Pair/1"), found);
        }
        Shape::Members(map) => {
            map.iter()
                .for_each(|(key, shape)| flaws(shape, &format!("{path}/Members/{}", escaped(key)), found));
        }
        Shape::Numbered(map) => {
            map.iter().for_each(|(key, shape)| flaws(shape, &format!("{path}/Numbered/{key}"), found));
        }
        Shape::Letters(map) => {
            map.iter().for_each(|(key, shape)| {
                flaws(shape, &format!("{path}/Letters/{}", escaped(&key.to_string())), found)
            });
        }
        Shape::Rates(rates) => rates
            .iter()
            .enumerate()
            .for_each(|(at, (rate, _))| note(!rate.0.is_finite(), format!("{path}/Rates/{at}/0"), found)),
        Shape::Flat(flat) => {
            note(!flat.amount.is_finite(), format!("{path}/Flat/amount"), found);
            for (key, value) in &flat.rest {
                note(!value.is_finite(), format!("{path}/Flat/{}", escaped(key)), found);
            }
            let twice = ["name", "amount"].iter().any(|key| flat.rest.contains_key(*key));
            note(twice, format!("{path}/Flat"), found);
        }
        _ => {}
    }
}

fn double() -> impl Strategy<Value = f64> {
    prop_oneof![20 => any::<u64>().prop_map(f64::from_bits), 5 => Just(-0.0), 1 => Just(f64::NAN), 1 => Just(f64::INFINITY), 5 => -10.0..10.0]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![Just("name".to_owned()), Just("a/~b".to_owned()), "\\PC{0,4}", any::<String>()]
}

fn shapes() -> impl Strategy<Value = Shape> {
    let leaf = prop_oneof![
        Just(Shape::Nothing),
        Just(Shape::Unit(())),
        any::<bool>().prop_map(Shape::Flag),
        any::<i8>().prop_map(Shape::Small),
        any::<i64>().prop_map(Shape::Whole),
        any::<u64>().prop_map(Shape::Large),
        any::<i128>().prop_map(|n| Shape::Wide(n >> 60)),
        any::<u32>().prop_map(|bits| Shape::Single(f32::from_bits(bits))),
        double().prop_map(Shape::Double),
        any::<char>().prop_map(Shape::Letter),
        any::<String>().prop_map(Shape::Text),
        any::<Option<Option<i8>>>().prop_map(Shape::Maybe),
        any::<Option<()>>().prop_map(|inner| Shape::MaybeUnit { inner }),
        (any::<u8>(), proptest::option::of(double())).prop_map(|(n, float)| Shape::MaybeFloat(n, float)),
        any::<Vec<u8>>().prop_map(Shape::Bytes),
        proptest::collection::vec((double().prop_map(Rate), any::<u8>()), 0..4).prop_map(Shape::Rates),
        (any::<String>(), double(), proptest::collection::btree_map(key(), double(), 0..4))
            .prop_map(|(name, amount, rest)| Shape::Flat(Flat { name, amount, rest })),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Shape::List),
            (inner.clone(), inner.clone()).prop_map(|pair| Shape::Pair(Box::new(pair))),
            proptest::collection::btree_map(key(), inner.clone(), 0..5).prop_map(Shape::Members),
            proptest::collection::btree_map(any::<i16>(), inner.clone(), 0..12).prop_map(Shape::Numbered),
            proptest::collection::btree_map(any::<char>(), inner, 0..5).prop_map(Shape::Letters),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_state_comes_back_equal_or_is_refused_by_path(shape in shapes()) {
        let mut bytes = Vec::new();
        let mut expect = Vec::new();
        flaws(&shape, "", &mut expect);

        match encode(&shape, &mut bytes) {
            Ok(()) => {
                prop_assert!(expect.is_empty(), "kept although {expect:?}");
                let read: Shape = serde_json::from_slice(&bytes).unwrap();
                prop_assert_eq!(&read, &shape);
                // Equality is too weak: the two zeros are equal.
                let mut again = Vec::new();
                encode(&read, &mut again).unwrap();
                prop_assert_eq!(&again, &bytes);
                prop_assert_eq!(&serde_json::to_vec(&shape).unwrap(), &bytes, "written as serde_json does");
            }
            Err(Flaw::Unkept { path, .. }) => {
                prop_assert!(expect.contains(&path.pointer()), "{} is not among {expect:?}", path.pointer());
            }
            Err(other) => prop_assert!(false, "{other:?}"),
        }
    }
}
