//! Schedules and plans as text for readers and for programs.
//!
//! Invariant: a pure function of its argument; in text, one line a transfer or a step, in order. Absent: what the
//! tables contain about an iteration (it follows from the steps), and a parser.

mod canvas;
mod chart;
mod dot;
mod figures;
mod heat;
mod json;
mod markdown;
mod names;
mod svg;
mod table;
mod text;

pub(crate) use canvas::{Anchor, Canvas, FAINT, GROUND, INK, QUIET, hue, text_width};
pub use chart::{Axis, Chart, Mark, Series, Unit, chart_svg};
pub use dot::{plan_dot, schedule_dot};
pub use heat::{Heat, HeatCell, HeatGroup, bytes_text, heat_svg};
pub(crate) use json::{document, lines, object, string};
pub use json::{plan_json, schedule_json};
pub use markdown::{schedules_document, schedules_files};
pub use svg::schedule_svg;
pub use table::schedule_table;
pub use text::{plan_text, schedule_text};
