use std::sync::{Arc, Mutex};

use super::*;
use crate::statistics::Spread;

#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn settings(line: &str) -> Settings {
    crate::arguments::parse(format!("collbench {line}").split(' ').map(Into::into))
        .map_err(|(text, _)| text)
        .unwrap()
}

fn peers() -> Vec<Peer> {
    let peer = |process| Peer {
        process,
        host: "node".into(),
        device: 0,
        bus: "cpu".into(),
        name: "Some Processor".into(),
    };
    vec![peer(11), peer(12)]
}

fn row(wrong: u64) -> Row {
    let measured = Measured {
        time_us: 10.0,
        algorithm_bandwidth: 2.0,
        bus_bandwidth: 1.5,
        wrong: Some(wrong),
        iterations: 7,
        spread: Spread::of(vec![1e-5, 2e-5]),
    };
    Row {
        bytes: 1024,
        count: 256,
        data_type: "float",
        op: "sum",
        root: -1,
        algorithm: Some("ring(channels=2)".into()),
        out_of_place: Some(measured.clone()),
        in_place: Some(Measured { wrong: None, bus_bandwidth: 2.5, ..measured }),
    }
}

#[test]
fn the_page() {
    let mut settings = settings("allreduce -b 8 -e 1K -f 2 --seed 5 -M");
    settings.note = Some("2 ranks: because".into());
    let page = Page::default();
    let mut report = Report::new(&settings, Box::new(page.clone()), vec![], peers(), None).unwrap();
    report.heading().unwrap();
    report.comment("something").unwrap();
    report.row(&row(0), 0).unwrap();
    assert_eq!(report.finish(4 << 20), Ok(Exit::Done));
    let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        text,
        format!(
            "# collbench version {version} consort-library={version}\n\
             # Collective test starting: all_reduce\n\
             # nThread 1 nGpus 0 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0\n\
             # iters not given: 20, or at least 3, as many as fit into 5 s\n\
             # seed: 5\n\
             # 2 ranks: because\n\
             #\n\
             # Using devices\n\
             #  Rank  0 Group  0 Pid     11 on       node device  0 [cpu] Some Processor\n\
             #  Rank  1 Group  0 Pid     12 on       node device  0 [cpu] Some Processor\n\
             {}\
             # something\n        1024           256     float     sum      -1    10.00    2.00    1.50       0    10.00    2.00    2.50     N/A\n\
             # Out of bounds values : 0 OK\n\
             # Avg bus bandwidth    : 2 \n\
             # Library memory       : 4 MiB per rank\n\
             #\n\
             # Collective test concluded: all_reduce\n\
             #\n",
            table::heading(&[])
        )
    );
}

#[test]
fn files() {
    let directory = std::env::temp_dir().join(format!("collbench-report-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let (json_path, csv_path) = (directory.join("a.json"), directory.join("a.csv"));
    let mut settings = settings("allreduce --size 1K -I --min-bw 1");
    settings.json = Some(json_path.clone());
    settings.csv = Some(csv_path.clone());
    let arguments = vec!["collbench".to_owned(), "allreduce".to_owned()];
    let mut report = Report::new(&settings, Box::new(Page::default()), arguments, peers(), None).unwrap();
    report.heading().unwrap();
    report.row(&row(3), 1).unwrap();
    report.row(&Row { in_place: None, ..row(0) }, 0).unwrap();
    assert!(!json_path.exists());
    assert_eq!(report.finish(0), Ok(Exit::WrongData));

    let json: Value = serde_json::from_str(&fs::read_to_string(&json_path).unwrap()).unwrap();
    for key in
        ["version", "start_time", "end_time", "args", "env", "nccl_version", "config", "results", "errors"]
    {
        assert!(json.get(key).is_some(), "{key}");
    }
    assert_eq!(json["config"]["devices"][1]["pid"], 12);
    assert_eq!(json["config"]["minimum_bytes"], 1024);
    assert_eq!(json["config"]["step_bytes"], 1 << 20);
    let first = &json["results"][0];
    assert_eq!((&first["size"], &first["count"], &first["root"]), (&json!(1024), &json!(256), &json!("-1")));
    assert_eq!(first["out_of_place"], json!({"time": 10.0, "alg_bw": 2.0, "bus_bw": 1.5, "nwrong": 3}));
    assert_eq!(first["in_place"]["nwrong"], Value::Null);
    assert_eq!(first["out_of_place_per_iter"]["max_us"], 20.0);
    assert_eq!((&first["actual_iterations"], &first["algorithm"]), (&json!(7), &json!("ring(channels=2)")));
    assert_eq!(json["results"][1]["in_place"], Value::Null);
    assert_eq!(json["out_of_bounds"], json!({"count": 1, "okay": "false"}));
    assert_eq!(json["average_bus_bandwidth"]["okay"], "true");

    let csv = fs::read_to_string(&csv_path).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("size,count,type,redop,root,out_of_place_time_us,out_of_place_alg_bw_gbs,"));
    assert!(lines[1].starts_with("1024,256,float,sum,-1,10,2,1.5,3,7,10,20,20,"), "{}", lines[1]);
    let columns: Vec<usize> = lines.iter().map(|line| line.split(',').count()).collect();
    // Device and path are the last two.
    assert_eq!(columns, [25, 25, 25]);
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn too_little_bandwidth_fails() {
    let settings = settings("allreduce --min-bw 3");
    let mut report = Report::new(&settings, Box::new(Page::default()), vec![], peers(), None).unwrap();
    report.row(&row(0), 0).unwrap();
    assert_eq!(report.finish(0), Ok(Exit::WrongData));
}

#[test]
fn files_that_cannot_be_written_are_found_at_once() {
    let mut settings = settings("allreduce");
    settings.json = Some("/nowhere/at/all.json".into());
    let failure = Report::new(&settings, Box::new(Page::default()), vec![], peers(), None).err().unwrap();
    assert!(failure.exit == Exit::Usage && failure.message.contains("/nowhere/at/all.json"), "{failure}");
}

#[test]
fn secrets_are_not_shown() {
    let all =
        [("CONSORT_SECRET", "hush"), ("CONSORT_CHANNELS", "2"), ("HOME", "/root"), ("NCCL_DEBUG", "WARN")];
    let shown = environment(all.into_iter().map(|(name, value)| (name.into(), value.into())));
    assert_eq!(shown, ["CONSORT_CHANNELS=2", "CONSORT_SECRET=(hidden)", "NCCL_DEBUG=WARN"]);
}
