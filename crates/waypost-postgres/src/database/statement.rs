//! A statement with typed values, and the statements worth preparing.
//!
//! A statement is one message to the server, so a pooler may use another server connection for every statement. A
//! process without a pooler prepares the statements that it repeats: the server keeps the plan.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Mutex;

use tokio_postgres::types::{ToSql, Type};

use crate::lock;

/// Uses of a text before its preparation, which costs a message: a short command sends no text so often.
const USES_MIN: u32 = 3;
/// Most counted texts: the texts of listings differ by their filters.
const TEXTS_MAX: usize = 500;

/// The uses of each text by the process.
#[derive(Debug, Default)]
pub(crate) struct Uses(Mutex<HashMap<Cow<'static, str>, u32>>);

impl Uses {
    /// Counts a use of a statement; returns whether its text is used often.
    pub(crate) fn is_often(&self, statement: &Statement) -> bool {
        let (sql, mut uses) = (&statement.sql, lock(&self.0));
        if let Some(count) = uses.get_mut(sql) {
            *count = count.saturating_add(1);
            return *count > USES_MIN;
        }
        if uses.len() < TEXTS_MAX {
            uses.insert(sql.clone(), 1);
        }
        false
    }
}

/// A statement with values, ready for repetitions.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) sql: Cow<'static, str>,
    values: Vec<Value>,
}

/// A value with a type.
#[derive(Debug)]
enum Value {
    Int(Option<i64>),
    Bool(bool),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
    Ints(Vec<Option<i64>>),
    Bools(Vec<bool>),
    Texts(Vec<String>),
    BytesList(Vec<Option<Vec<u8>>>),
}

impl Statement {
    pub(crate) fn new(sql: impl Into<Cow<'static, str>>) -> Self {
        Self { sql: sql.into(), values: Vec::new() }
    }

    fn with(mut self, value: Value) -> Self {
        self.values.push(value);
        self
    }

    pub(crate) fn int(self, value: impl Into<Option<i64>>) -> Self {
        self.with(Value::Int(value.into()))
    }

    pub(crate) fn bool(self, value: bool) -> Self {
        self.with(Value::Bool(value))
    }

    pub(crate) fn text(self, value: impl Into<String>) -> Self {
        self.with(Value::Text(Some(value.into())))
    }

    pub(crate) fn maybe_text(self, value: Option<String>) -> Self {
        self.with(Value::Text(value))
    }

    pub(crate) fn bytes(self, value: impl Into<Option<Vec<u8>>>) -> Self {
        self.with(Value::Bytes(value.into()))
    }

    pub(crate) fn ints(self, values: Vec<Option<i64>>) -> Self {
        self.with(Value::Ints(values))
    }

    pub(crate) fn bools(self, values: Vec<bool>) -> Self {
        self.with(Value::Bools(values))
    }

    pub(crate) fn texts(self, values: Vec<String>) -> Self {
        self.with(Value::Texts(values))
    }

    pub(crate) fn bytes_list(self, values: Vec<Option<Vec<u8>>>) -> Self {
        self.with(Value::BytesList(values))
    }

    /// Returns the number of values so far: the number of the last value in the text.
    pub(crate) fn count(&self) -> usize {
        self.values.len()
    }

    /// Returns the values with their types.
    pub(crate) fn parameters(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        fn typed(value: &Value) -> (&(dyn ToSql + Sync), Type) {
            match value {
                Value::Int(value) => (value, Type::INT8),
                Value::Bool(value) => (value, Type::BOOL),
                Value::Text(value) => (value, Type::TEXT),
                Value::Bytes(value) => (value, Type::BYTEA),
                Value::Ints(values) => (values, Type::INT8_ARRAY),
                Value::Bools(values) => (values, Type::BOOL_ARRAY),
                Value::Texts(values) => (values, Type::TEXT_ARRAY),
                Value::BytesList(values) => (values, Type::BYTEA_ARRAY),
            }
        }
        self.values.iter().map(typed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fourth_use_of_a_text_prepares_it() {
        let uses = Uses::default();
        let is_often = |sql: &'static str| uses.is_often(&Statement::new(sql));

        assert_eq!([(); 5].map(|()| is_often("SELECT 1")), [false, false, false, true, true]);
        assert!(!is_often("SELECT 2"));
    }

    #[test]
    fn the_number_of_counted_texts_is_limited() {
        let uses = Uses::default();
        for number in 0..2 * TEXTS_MAX {
            assert!(!uses.is_often(&Statement::new(format!("SELECT {number}"))));
        }

        assert_eq!(lock(&uses.0).len(), TEXTS_MAX);
    }
}
