//! `db_row`: expectations of rows, in SQLite files and in PostgreSQL.

pub(crate) mod database_file;
pub(crate) mod pg_config;
pub(crate) mod postgres;
pub(crate) mod rows;
pub(crate) mod sqlite;
