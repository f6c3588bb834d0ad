//! The Waypost store over an SQLite file.
