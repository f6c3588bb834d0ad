//! `db_row`: expectations of rows, in SQLite files and in PostgreSQL.

pub(crate) mod database_file;
#[cfg(feature = "postgres")]
mod pg_config;
#[cfg(feature = "postgres")]
mod pg_tls;
#[cfg_attr(not(feature = "postgres"), path = "no_postgres.rs")]
pub(crate) mod postgres;
pub(crate) mod rows;
pub(crate) mod sqlite;
pub(crate) mod subject;
