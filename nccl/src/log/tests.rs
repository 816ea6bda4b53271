//! Golden lines, masks, files, two threads. The one logger of the process is used by one test alone.

use std::path::PathBuf;

use super::*;

fn environment(set: &[(&str, &str)]) -> Environment<'static> {
    let set: Vec<(String, String)> =
        set.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    Environment::from_lookup(move |name| {
        set.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone())
    })
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("consort-log-{}-{name}", std::process::id()))
}

#[test]
fn golden_lines() {
    let place = "vm:12:34";
    let render = |line: Line<'_>, stamp: &str, text: &str| line.render(stamp, place, &text);
    assert_eq!(render(Line::Info { device: 3 }, "", "hello"), "vm:12:34 [3] NCCL INFO hello\n");
    assert_eq!(
        render(Line::Warn { device: 0, file: "src/a.rs", line: 7 }, "[2026-01-02 03:04:05] ", "beware"),
        "[2026-01-02 03:04:05] vm:12:34 [0] src/a.rs:7 NCCL WARN beware\n"
    );
    assert_eq!(
        render(Line::Call, "", "ncclAllReduce(0x1, 0x2)"),
        "vm:12:34 NCCL CALL ncclAllReduce(0x1, 0x2)\n"
    );
    assert_eq!(render(Line::Plain, "", "NCCL version 2.30.7+x"), "NCCL version 2.30.7+x\n");
    assert_eq!(
        render(Line::Info { device: NO_DEVICE }, "", "one\n\nthree\n"),
        "vm:12:34 [-1] NCCL INFO one\nvm:12:34 [-1] NCCL INFO \nvm:12:34 [-1] NCCL INFO three\n"
    );
}

#[test]
fn what_variables_ask_for() {
    let of = |set: &[(&str, &str)]| Logger::new(&environment(set));
    let plain = of(&[]);
    let default = Subsystem::Init.bit() | Subsystem::Bootstrap.bit() | Subsystem::Env.bit();
    assert_eq!((plain.level, plain.mask, plain.info_on_warning), (Level::None, default, false));
    for (text, level) in [
        ("version", Level::Version),
        ("WARN", Level::Warn),
        ("Info", Level::Info),
        ("ABORT", Level::Abort),
        ("trace", Level::Trace),
        ("none", Level::None),
        ("loud", Level::None),
    ] {
        assert_eq!(of(&[("NCCL_DEBUG", text)]).level, level, "{text}");
    }
    assert!(of(&[("NCCL_WARN_ENABLE_DEBUG_INFO", "1")]).info_on_warning);
}

/// Replaces the process's logger by one of these variables, until [`reset`].
fn set_from(environment: &Environment<'_>) {
    let mut slot = LOGGER.write().unwrap_or_else(PoisonError::into_inner);
    *slot = Some(install(Logger::new(environment)));
}

/// The part of a line behind the place, which differs between runs.
fn texts(path: &PathBuf) -> Vec<String> {
    let all = std::fs::read_to_string(path).expect("the log");
    let pid = format!(":{}:", std::process::id());
    let lines = all.lines().filter(|line| !line.starts_with("NCCL version"));
    assert!(lines.clone().all(|line| line.contains(&pid)), "{all}");
    lines.map(|line| line[line.find(" NCCL ").expect("a kind") + 1..].to_owned()).collect()
}

#[test]
fn the_one_logger_of_the_process() {
    let path = file("%p-all").display().to_string();
    let written = file(&format!("{}-all", std::process::id()));
    let set = |level: &str, subsystems: &str, extra: (&str, &str)| {
        set_from(&environment(&[
            ("NCCL_DEBUG", level),
            ("NCCL_DEBUG_SUBSYS", subsystems),
            ("NCCL_DEBUG_FILE", &path),
            ("NCCL_DEBUG_TIMESTAMP_FORMAT", "<%Y> "),
            extra,
        ]));
    };
    let none = ("", "");
    let all = || {
        version("2.0");
        warn(1, "w");
        info(Subsystem::Init, 1, "i");
        info(Subsystem::Net, 1, "n");
        call("c()");
    };

    set("WARN", "NET", none);
    all();
    let warning = texts(&written);
    assert_eq!(warning, ["NCCL WARN w"]);
    let whole = std::fs::read_to_string(&written).expect("the log");
    assert!(whole.starts_with("NCCL version 2.0\n<2"), "{whole}");
    assert!(whole.contains(" [1] nccl/src/log/tests.rs:"), "the place of the call: {whole}");
    assert!(enabled(Level::Warn, Subsystem::Net) && !enabled(Level::Info, Subsystem::Net));

    // The same file is appended to, as this process began it.
    set("info", "^INIT,CALL", none);
    all();
    assert_eq!(texts(&written)[1..], ["NCCL INFO NCCL version 2.0", "NCCL WARN w", "NCCL INFO n"]);
    set("TRACE", "ALL", ("NCCL_DEBUG_TIMESTAMP_LEVELS", "TRACE"));
    all();
    let lines = texts(&written);
    assert_eq!(
        lines[4..],
        ["NCCL INFO NCCL version 2.0", "NCCL WARN w", "NCCL INFO i", "NCCL INFO n", "NCCL CALL c()"]
    );
    assert!(
        std::fs::read_to_string(&written)
            .expect("the log")
            .lines()
            .last()
            .is_some_and(|l| l.starts_with("<2"))
    );

    set("WARN", "INIT", ("NCCL_WARN_ENABLE_DEBUG_INFO", "1"));
    info(Subsystem::Init, 0, "not yet");
    warn(0, "now");
    info(Subsystem::Init, 0, "later");
    assert_eq!(texts(&written)[9..], ["NCCL WARN now", "NCCL INFO later"]);

    // Lines of threads do not mix.
    set("INFO", "INIT", none);
    std::thread::scope(|threads| {
        for letter in ["a", "b"] {
            threads.spawn(move || {
                for _ in 0..500 {
                    info(Subsystem::Init, 0, letter.repeat(300));
                }
            });
        }
    });
    let lines = texts(&written);
    let whole = |letter: &str| {
        let line = format!("NCCL INFO {}", letter.repeat(300));
        lines.iter().filter(|found| **found == line).count()
    };
    assert_eq!((whole("a"), whole("b")), (500, 500));

    // Warnings of the library arrive here.
    listen();
    consort_settings::notice::warn("from the library\nin two lines");
    assert_eq!(texts(&written)[lines.len()..], ["NCCL WARN from the library", "NCCL WARN in two lines"]);
    // A variable without effect is logged.
    set("INFO", "ENV", none);
    announce(&environment(&[("NCCL_ALGO", "ring"), ("NCCL_IB_FIFO_TC", "5")]));
    let lines = texts(&written);
    let last = &lines[lines.len() - 2..];
    assert_eq!(last[0], "NCCL INFO NCCL_ALGO set by environment to ring.");
    assert!(
        last[1].starts_with("NCCL INFO NCCL_IB_FIFO_TC set by environment to 5 is ignored: "),
        "{last:?}"
    );

    std::fs::remove_file(&written).expect("removed");
    reset();
}

/// Standard output belongs to a process, so this test has one of its own.
#[test]
fn what_a_file_does_not_take_goes_to_standard_output_and_is_no_error() {
    const CHILD: &str = "CONSORT_TEST_OF_THE_LOG";
    let nowhere = [("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", "/nonexistent/%h/log")];
    let full = [("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", "/dev/full")];
    if std::env::var_os(CHILD).is_some() {
        let is_there = std::path::Path::new("/dev/full").exists();
        if !is_there {
            eprintln!("SKIP: there is no /dev/full");
        }
        for (set, text) in [(nowhere, "shown"), (full, "lost")].into_iter().take(1 + usize::from(is_there)) {
            Logger::new(&environment(&set)).write(&Line::Info { device: 0 }, &text);
        }
        return;
    }
    let name = "log::tests::what_a_file_does_not_take_goes_to_standard_output_and_is_no_error";
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"));
    let ended = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().expect("it runs");
    let said = String::from_utf8_lossy(&ended.stdout);
    eprint!("{}", String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
    let lines: Vec<&str> =
        said.lines().filter_map(|line| line.split_once(" NCCL ").map(|(_, text)| text)).collect();
    let [warning, "INFO shown"] = lines.as_slice() else { panic!("{said}") };
    assert!(warning.starts_with("WARN NCCL_DEBUG_FILE: /nonexistent/"), "{warning}");
    assert!(warning.contains(" cannot be written, lines go to standard output: "), "{warning}");
}
