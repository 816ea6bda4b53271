//! Files in which jobs leave what they know of their machine, and from which other jobs read it: NCCL's variables, end to end.

use std::path::{Path, PathBuf};

use consort::planning::read_topology;
use consort_tests::job::Start;

use crate::RANK;

/// Two GPUs that two NVLinks join.
const PAIR: &str = r#"<system version="1">
  <cpu numaid="0" affinity="00000000,0000000f" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
    <pci busid="0000:07:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:0a:00.0" count="2" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:0a:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:07:00.0" count="2" tclass="0x030200"/></gpu>
    </pci>
  </cpu>
</system>
"#;

/// A directory of this test, which is deleted afterwards.
struct Place(PathBuf);

impl Place {
    fn of(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("consort-machines-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Place(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Runs a job of two ranks to its end.
fn run(variables: &[(&str, &Path)]) -> String {
    let mut start = Start::new(RANK, "graph", 2).env("CONSORT_JOIN_TIMEOUT", 30);
    for (name, path) in variables {
        start = start.env(name, path.display());
    }
    let mut job = start.go();
    (0..2).for_each(|rank| drop(job.line(rank, "graph")));
    job.all_end_well();
    job.output()
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn a_machine_of_a_file_is_written_with_its_rings_and_both_are_read_again() {
    let place = Place::of("pair");
    let [file, machine, graphs, again] = ["file", "machine", "graphs", "again"].map(|name| place.file(name));
    std::fs::write(&file, PAIR).expect("a file");
    run(&[
        ("NCCL_TOPO_FILE", &file),
        ("NCCL_TOPO_DUMP_FILE", &machine),
        ("NCCL_TOPO_DUMP_FILE_RANK", Path::new("1")),
        ("NCCL_GRAPH_DUMP_FILE", &graphs),
    ]);
    let named = |path: &Path| read_topology(&path.display().to_string()).expect("a graph");
    let (read, written) = (named(&file), named(&machine));
    assert_eq!((read.ranks(), read.links()), (2, written.links()), "{}", text(&machine));
    assert!(text(&graphs).contains("<graphs") && text(&graphs).contains("<channel"), "{}", text(&graphs));
    // A job that has only what the first one wrote.
    run(&[("NCCL_TOPO_FILE", &machine), ("NCCL_GRAPH_FILE", &graphs), ("NCCL_GRAPH_DUMP_FILE", &again)]);
    assert_eq!(text(&again), text(&graphs));
}

#[test]
fn this_machine_is_written_and_planned_by() {
    let place = Place::of("here");
    let machine = place.file("machine");
    run(&[("NCCL_TOPO_DUMP_FILE", &machine)]);
    assert!(text(&machine).contains("<cpu "), "{}", text(&machine));
    let graph = read_topology(&machine.display().to_string());
    assert!(graph.is_ok_and(|graph| graph.ranks() > 0), "{}", text(&machine));
    let output = run(&[("NCCL_TOPO_FILE", &machine)]);
    assert!(!output.contains("NCCL_TOPO_FILE"), "{output}");
}

#[test]
fn what_cannot_be_written_or_does_not_fit_is_a_warning_and_the_job_goes_on() {
    let place = Place::of("warned");
    let [nowhere, other] = ["no/such/place", "other"].map(|name| place.file(name));
    let output = run(&[("NCCL_TOPO_DUMP_FILE", &nowhere), ("NCCL_GRAPH_DUMP_FILE", &nowhere)]);
    for variable in ["NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE"] {
        assert!(
            output.contains(&format!("{variable} {}: it is not written: ", nowhere.display())),
            "{output}"
        );
    }
    std::fs::write(&other, "topology t\nrank a box=0\n").expect("a file");
    let output = run(&[("CONSORT_TOPOLOGY", &other)]);
    assert!(output.contains("CONSORT_TOPOLOGY is not the machine of this job: it has 1 rank,"), "{output}");
}
