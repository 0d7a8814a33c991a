//! Nothing: the programs are in `main.rs`, and other packages may depend on this library to follow their sources.
#![no_std]
