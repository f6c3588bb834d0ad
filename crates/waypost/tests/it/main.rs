//! Integration tests of the library, one module a topic.

mod lock;
