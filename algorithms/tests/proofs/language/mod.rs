//! The schedule language, and files of schedules of others.

mod files;
