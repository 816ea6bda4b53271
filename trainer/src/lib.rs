//! A small language-model trainer on consort's public Rust API.
//!
//! The floors, from the ground up: numbers and matrix products; layers, each in up to three functions; parameters in
//! buckets; a model; an optimizer; ranks that share the work; the loop. `docs/adr/0038-trainer.md` has the reasons.
//!
//! ```
//! use consort_trainer::mesh::Degrees;
//! use consort_trainer::model::Shape;
//! use consort_trainer::optimizer::{AdamW, Schedule};
//! use consort_trainer::parallel::pipeline::Order;
//! use consort_trainer::parallel::zero::Zero;
//! use consort_trainer::products::Products;
//! use consort_trainer::ranks::Overlap;
//! use consort_trainer::text::{Text, VOCABULARY};
//! use consort_trainer::train::{Run, Trainer};
//!
//! let shape = Shape {
//!     vocabulary: VOCABULARY, width: 16, layers: 1, heads: 2, kv_heads: 1, hidden: 32, sequence: 16, experts: None, tied: false,
//!     rope_base: 10_000.0, norm_epsilon: 1e-5,
//! };
//! let schedule = Schedule { rate: 1e-2, least: 1e-3, warmup: 2, steps: 10 };
//! let run = Run {
//!     shape, products: Products::Exact, degrees: Degrees::default(), zero: Zero::Nothing, batch: 4, micro_batches: 1,
//!     order: Order::default(), bucket_bytes: 1 << 20, overlap: Overlap::default(), adamw: AdamW::default(), schedule, balance: 0.0,
//!     clip: 1.0, seed: 1,
//! };
//! let text = Text::bundled(shape.sequence)?;
//! let mut trainer = Trainer::<f32>::new(run, &text, None)?;
//! let first = trainer.step()?.loss;
//! assert!((first - 256f64.ln()).abs() < 0.1);
//! # consort_trainer::error::Result::Ok(())
//! ```

#![deny(unsafe_code)]

pub mod arguments;
pub mod chart;
pub mod checkpoint;
pub mod config;
pub mod demand;
pub mod door;
pub mod elastic;
pub mod error;
pub mod launch;
pub mod layers;
pub mod mesh;
pub mod model;
pub mod number;
pub mod optimizer;
pub mod parallel;
pub mod parameters;
#[allow(
    unsafe_code,
    reason = "products of matrices are called with pointers, or are instructions of one kind of processor"
)]
pub mod products;
pub mod progress;
pub mod random;
pub mod ranks;
pub mod routes;
pub mod sample;
pub mod session;
pub mod text;
pub mod timeline;
pub mod train;
pub mod vocabulary;
