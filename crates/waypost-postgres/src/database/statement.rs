//! A statement with typed values: one message to the server, without a prepared statement. So a pooler may use another
//! server connection for every statement.

use std::borrow::Cow;

use tokio_postgres::types::{ToSql, Type};

/// A statement with values, ready for repetitions.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) sql: Cow<'static, str>,
    /// Sent for every batch, with the same text: a connection without a pooler keeps the plan.
    pub(crate) is_frequent: bool,
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
        Self { sql: sql.into(), is_frequent: false, values: Vec::new() }
    }

    pub(crate) fn frequent(self) -> Self {
        Self { is_frequent: true, ..self }
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
