//! Which shared object is meant by a name in `NCCL_NET_PLUGIN`, as NCCL means it, and which of its tables.
//!
//! Invariant: an object stays open once it was opened, also one that is no plugin. Absent: what a plugin does.

use std::ffi::CString;

use crate::abi::{NetV8, NetV9, NetV10, NetV11, NetV12};
use crate::library::Library;

/// The object where none is named.
pub(super) const DEFAULT: &str = "libnccl-net.so";
/// What names end with, and begin with, that are files of libraries already.
const PREFIX: &str = "lib";
const SUFFIX: &str = ".so";
/// The name of a plugin that was linked into the program.
const LINKED: &str = "STATIC_PLUGIN";

/// The names of a list; none where the list is `none`.
pub(super) fn names(list: &str) -> Vec<&str> {
    match list.trim() {
        "" => vec![DEFAULT],
        none if none.eq_ignore_ascii_case("none") => Vec::new(),
        list => list.split(',').filter(|name| !name.is_empty()).collect(),
    }
}

/// The files that a name may mean, the likelier first. None for the program itself.
fn files(name: &str) -> Vec<Option<String>> {
    if name.eq_ignore_ascii_case(LINKED) {
        return vec![None];
    }
    let is_file = name.contains('/') || (name.starts_with(PREFIX) && name.ends_with(SUFFIX));
    let mut files = vec![Some(name.to_owned())];
    if !is_file {
        files.push(Some(format!("libnccl-net-{name}.so")));
    }
    files
}

/// A plugin's table, by its version.
#[derive(Clone, Copy)]
pub(super) enum Tables {
    V8(&'static NetV8),
    V9(&'static NetV9),
    V10(&'static NetV10),
    V11(&'static NetV11),
    V12(&'static NetV12),
}

impl Tables {
    /// The newest of the tables that are known here.
    fn newest(library: Library) -> Option<Self> {
        macro_rules! table {
            ($symbol:literal, $version:ident) => {
                if let Some(address) = library.find($symbol) {
                    // SAFETY: NCCL's interface has a table of this type under that name; the library stays.
                    return Some(Tables::$version(unsafe { &*address.cast() }));
                }
            };
        }
        table!(c"ncclNetPlugin_v12", V12);
        table!(c"ncclNetPlugin_v11", V11);
        table!(c"ncclNetPlugin_v10", V10);
        table!(c"ncclNetPlugin_v9", V9);
        table!(c"ncclNetPlugin_v8", V8);
        None
    }
}

/// A plugin that was found.
pub(super) struct Found {
    pub(super) file: String,
    pub(super) tables: Tables,
}

/// Opens the plugin that a name means.
///
/// # Errors
/// Why there is none, for each file that it may mean.
pub(super) fn open(name: &str) -> Result<Found, String> {
    let mut refused = Vec::new();
    for file in files(name) {
        let shown = file.clone().unwrap_or_else(|| "the program".into());
        let Ok(path) = file.map(CString::new).transpose() else {
            refused.push(format!("{shown:?} is no name of a file"));
            continue;
        };
        match Library::open(path.as_deref()) {
            Ok(library) => {
                let tables = Tables::newest(library).ok_or_else(|| {
                    format!("{shown} exports none of ncclNetPlugin_v8 to ncclNetPlugin_v12")
                })?;
                return Ok(Found { file: shown, tables });
            }
            // The loader's words begin with the name, where a file is not there.
            Err(words) if words.starts_with(&shown) => refused.push(words),
            Err(words) => refused.push(format!("{shown}: {words}")),
        }
    }
    Err(refused.join(", and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_what_they_mean_to_nccl() {
        assert_eq!(names(""), [DEFAULT]);
        assert!(names("none").is_empty() && names("NONE").is_empty());
        assert_eq!(names("aws-ofi,,./mine.so"), ["aws-ofi", "./mine.so"]);
        let meant = |name: &str| -> Vec<String> { files(name).into_iter().flatten().collect() };
        assert_eq!(meant("ofi"), ["ofi", "libnccl-net-ofi.so"]);
        assert_eq!(meant("libnccl-net-ofi.so"), ["libnccl-net-ofi.so"]);
        assert_eq!(meant("ofi.so"), ["ofi.so", "libnccl-net-ofi.so.so"]);
        assert_eq!(meant("libofi"), ["libofi", "libnccl-net-libofi.so"]);
        assert_eq!(meant("./ofi"), ["./ofi"]);
        assert!(meant("static_plugin").is_empty() && files("static_plugin") == [None]);
    }

    #[test]
    fn what_is_no_plugin_is_refused_with_its_names() {
        let refused = |name: &str| open(name).map(|found| found.file).expect_err("no plugin");
        let words = refused("not-there");
        assert!(
            words.contains("not-there: ") && words.contains(", and libnccl-net-not-there.so: "),
            "{words}"
        );
        assert!(
            refused("libc.so.6").contains("libc.so.6 exports none of ncclNetPlugin_v8 to ncclNetPlugin_v12")
        );
        assert!(refused("a\0b").contains("is no name of a file"));
        assert!(refused("STATIC_PLUGIN").starts_with("the program exports none"));
    }
}
