//! The repository: its map, its documents and comments, its headers, and code that must not compile.

mod architecture;
mod documents;
mod floors;
mod functions;
mod header;
mod misuse;
mod symbols;
mod variables;
mod words;
