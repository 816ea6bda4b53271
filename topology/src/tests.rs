//! Hosts as their kernels describe them, in files that the tests write; and the thread of the test itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::host::parse_list;
use super::pin::{Local, Pinned, cores_for};
use super::*;
use consort_settings::options::Pinning;

/// A description of a host, in a directory of its own.
struct Fixture(PathBuf);

impl Fixture {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("consort-sysfs-{}-{number}", std::process::id()));
        fs::create_dir_all(&root).expect("a directory");
        Fixture(root)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, format!("{text}\n")).expect("a file");
    }

    /// Cores that share a cache of this level, written for each of them.
    fn cache(&self, index: u32, level: u32, kind: &str, cores: &str) {
        for core in parse_list(cores).expect("a list") {
            let place = format!("cpu/cpu{core}/cache/index{index}");
            self.write(&format!("{place}/level"), &level.to_string());
            self.write(&format!("{place}/type"), kind);
            self.write(&format!("{place}/shared_cpu_list"), cores);
        }
    }

    /// A cache of its own for each core in the first two levels, as on every machine.
    fn own_caches(&self, cores: u32) {
        for core in 0..cores {
            for (index, (level, kind)) in [(1, "Data"), (1, "Instruction"), (2, "Unified")].iter().enumerate()
            {
                self.cache(index as u32, *level, kind, &core.to_string());
            }
        }
    }

    fn node(&self, number: u32, cores: &str) {
        self.write(&format!("node/node{number}/cpulist"), cores);
    }

    fn threads(&self, cores: &str) {
        for core in parse_list(cores).expect("a list") {
            self.write(&format!("cpu/cpu{core}/topology/thread_siblings_list"), cores);
        }
    }

    fn host(&self, cores: &Cores) -> Host {
        Host::read(&self.0, cores).with_threads(&self.0, cores)
    }

    fn place(&self, cores: &str) -> (Option<u32>, Option<u32>) {
        let cores = parse_list(cores).expect("a list");
        let Place { cache, node, .. } = Host::read(&self.0, &cores).place(&cores);
        (cache, node)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Two sockets of 16 cores, each a node with four last-level caches (AMD EPYC, one node a socket).
fn two_sockets() -> Fixture {
    let fixture = Fixture::new();
    fixture.own_caches(32);
    for cache in 0..8 {
        fixture.cache(3, 3, "Unified", &format!("{}-{}", cache * 4, cache * 4 + 3));
    }
    fixture.node(0, "0-15");
    fixture.node(1, "16-31");
    // An entry that is no node.
    fixture.write("node/has_cpu", "0-1");
    fixture.write("node/nodes/cpulist", "0-31");
    fixture
}

#[test]
fn two_sockets_of_four_caches() {
    let fixture = two_sockets();
    assert_eq!(fixture.place("0-3"), (Some(0), Some(0)));
    assert_eq!(fixture.place("21,23"), (Some(20), Some(1)));
    assert_eq!(fixture.place("8-15"), (None, Some(0)), "two caches of one socket");
    assert_eq!(fixture.place("15-16"), (None, None), "two sockets");
    assert_eq!(fixture.place("0-31"), (None, None));
    assert_eq!(fixture.place("31"), (Some(28), Some(1)));
    assert_eq!(fixture.place("40"), (None, None), "a core that is not there");
    assert_eq!(fixture.place("28-32"), (None, None), "one of them is not there");
}

#[test]
fn one_socket_with_one_cache() {
    let fixture = Fixture::new();
    fixture.own_caches(8);
    fixture.cache(3, 3, "Unified", "0-7");
    fixture.node(0, "0-7");
    assert_eq!(fixture.place("0-7"), (Some(0), None), "the only node is none");
    assert_eq!(fixture.place("5"), (Some(0), None));
}

#[test]
fn two_sockets_whose_caches_are_cut_into_nodes() {
    // Intel with sub-NUMA clusters: the cache of a socket is listed whole.
    let fixture = Fixture::new();
    for socket in ["0-3,8-11", "4-7,12-15"] {
        fixture.cache(3, 3, "Unified", socket);
    }
    for (node, cores) in ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"].iter().enumerate() {
        fixture.node(node as u32, cores);
    }
    // Memory without cores.
    fixture.node(4, "");
    assert_eq!(fixture.place("2-3"), (Some(0), Some(1)));
    assert_eq!(fixture.place("8-11"), (Some(0), None));
    assert_eq!(fixture.place("14"), (Some(4), Some(3)));
    let place = |core: u32| Host::read(&fixture.0, &Cores::from([core])).place(&Cores::from([core]));
    // Bound to nodes, two ranks each: a socket's four ranks share a cache.
    assert_eq!(per_domain(&[0, 1, 2, 3, 4, 5, 6, 7].map(place)), 4);
    // On one socket only the nodes separate them.
    assert_eq!(per_domain(&[0, 1, 2, 3].map(place)), 2);
}

#[test]
fn a_virtual_machine_tells_nothing() {
    let fixture = Fixture::new();
    assert_eq!(fixture.place("0-3"), (None, None), "no files at all");
    fixture.node(0, "0-3");
    fixture.own_caches(4);
    assert_eq!(fixture.place("0-3"), (None, None), "no third level");
    assert_eq!(
        Host::read(Path::new("/nonexistent"), &Cores::from([0])).place(&Cores::from([0])),
        Place::default()
    );
    assert_eq!(fixture.place(""), (None, None), "no cores");
}

#[test]
fn odd_files_are_unknown() {
    let fixture = two_sockets();
    fixture.write("cpu/cpu0/cache/index3/shared_cpu_list", "0-");
    fixture.write("cpu/cpu4/cache/index3/shared_cpu_list", "5-7");
    fixture.write("cpu/cpu8/cache/index3/level", "three");
    fixture.write("cpu/cpu12/cache/index3/type", "Instruction");
    for core in ["0", "4", "8", "12"] {
        assert_eq!(fixture.place(core), (None, Some(0)), "core {core}");
    }
    // Two lists that overlap: the first one holds.
    fixture.write("cpu/cpu20/cache/index3/shared_cpu_list", "16-20");
    assert_eq!(fixture.place("16,20"), (None, Some(1)));
    // An index that is missing hides none of those behind it.
    fs::remove_file(fixture.0.join("cpu/cpu24/cache/index1/level")).expect("a file");
    assert_eq!(fixture.place("24"), (Some(24), Some(1)));
    fixture.node(1, "16-31,0");
    assert_eq!(fixture.place("0"), (None, None), "in two nodes");
    fixture.node(1, "sixteen");
    assert_eq!(fixture.place("16,17"), (Some(16), None));
    for wrong in ["0-", "-3", "3-1", "1,,2", "a", "0-3:1/2", "4000000000", "0-4000000000", "1 2"] {
        assert_eq!(parse_list(wrong), None, "{wrong}");
    }
    assert_eq!(parse_list(" 0-2,8,10-11\n"), Some(Cores::from([0, 1, 2, 8, 10, 11])));
    assert_eq!(parse_list("\n"), Some(Cores::new()));
}

fn places(of: &[(Option<u32>, Option<u32>)]) -> Vec<Place> {
    of.iter().map(|(cache, node)| Place { cache: *cache, node: *node, ..Place::default() }).collect()
}

#[test]
fn domains_are_even_and_in_order_or_are_not() {
    let caches = |of: &[u32]| per_domain(&places(&of.iter().map(|at| (Some(*at), None)).collect::<Vec<_>>()));
    assert_eq!(caches(&[0, 0, 0, 0, 4, 4, 4, 4]), 4);
    assert_eq!(caches(&[9, 9, 3, 3, 6, 6]), 2, "in any order of domains");
    assert_eq!(caches(&[0, 0, 0, 0]), 1, "one domain is none");
    assert_eq!(caches(&[0, 1, 2, 3]), 1, "each has one of its own");
    assert_eq!(caches(&[0, 4, 0, 4]), 1, "in turns");
    assert_eq!(caches(&[0, 0, 4, 4, 4]), 1, "uneven");
    assert_eq!(caches(&[0, 0, 4, 4, 0, 0]), 1, "one comes twice");
    assert_eq!(caches(&[]), 1);
    assert_eq!(caches(&[7]), 1);
    // Where each rank has a cache of its own, nodes decide; so they do where a rank may run in several caches.
    let (a, b) = ((Some(0), Some(0)), (Some(4), Some(0)));
    let (c, d) = ((Some(8), Some(1)), (Some(12), Some(1)));
    assert_eq!(per_domain(&places(&[a, b, c, d])), 2);
    assert_eq!(per_domain(&places(&[(None, Some(0)), a, c, d])), 2);
    assert_eq!(per_domain(&places(&[(None, Some(0)), a, c, (None, None)])), 1);
    assert_eq!(per_domain(&places(&[a, a, b, b, c, c, d, d])), 2, "caches first");
}

#[test]
fn ranks_get_different_cores_and_neighbours_near_ones() {
    let fixture = two_sockets();
    let allowed = |text: &str| parse_list(text).expect("a list");
    let all = |cores: &Cores, pinning, size: u32| -> Vec<Vec<u32>> {
        let host = fixture.host(cores);
        let of = |rank| cores_for(&host, cores, pinning, Local { rank, size }).into_iter().collect();
        (0..size).map(of).collect()
    };
    let whole = allowed("0-31");
    let firsts = |pinned: Vec<Vec<u32>>| pinned.into_iter().map(|cores| cores[0]).collect::<Vec<_>>();
    assert_eq!(firsts(all(&whole, Pinning::Cores, 8)), [0, 4, 8, 12, 16, 20, 24, 28], "one a cache");
    assert_eq!(firsts(all(&whole, Pinning::Cores, 2)), [0, 16], "one a socket");
    assert_eq!(firsts(all(&whole, Pinning::Cores, 16))[..4], [0, 2, 4, 6]);
    assert_eq!(firsts(all(&whole, Pinning::Cores, 32)), (0..32).collect::<Vec<_>>());
    assert!(all(&whole, Pinning::Cores, 5).iter().all(|cores| cores.len() == 1));
    // More ranks than cores: as many on each.
    assert_eq!(firsts(all(&allowed("1,6"), Pinning::Cores, 4)), [1, 1, 6, 6]);
    let domains = all(&whole, Pinning::Domains, 16);
    assert_eq!(
        (&domains[0], &domains[1], &domains[15]),
        (&vec![0, 1, 2, 3], &vec![0, 1, 2, 3], &vec![28, 29, 30, 31])
    );
    // Never beyond what was allowed.
    assert_eq!(all(&allowed("2-5"), Pinning::Domains, 2), [[2, 3], [4, 5]]);
    assert_eq!(all(&allowed("2-5"), Pinning::None, 1), [[2, 3, 4, 5]]);
    assert!(all(&Cores::new(), Pinning::Cores, 1)[0].is_empty());
    // Pinned like this, ranks are in domains.
    let host = fixture.host(&whole);
    let place = |rank, size| host.place(&cores_for(&host, &whole, Pinning::Cores, Local { rank, size }));
    let found = |size: u32| per_domain(&(0..size).map(|rank| place(rank, size)).collect::<Vec<_>>());
    assert_eq!([32, 16, 8, 4, 2].map(found), [4, 2, 4, 2, 1]);
}

#[test]
fn threads_of_a_core_are_shared_last() {
    let fixture = Fixture::new();
    fixture.cache(3, 3, "Unified", "0-7");
    for core in 0..4 {
        fixture.threads(&format!("{core},{}", core + 4));
    }
    let cores = parse_list("0-7").expect("a list");
    let host = fixture.host(&cores);
    let physical = |size| {
        let of = |rank| cores_for(&host, &cores, Pinning::Cores, Local { rank, size });
        (0..size).map(|rank| of(rank).first().map(|core| core % 4)).collect::<BTreeSet<_>>().len()
    };
    assert_eq!([1, 2, 3, 4, 8].map(physical), [1, 2, 3, 4, 4]);
}

#[test]
fn a_launchers_numbers_come_first() {
    let local = |said| {
        let Local { rank, size } = Local::or_all(6, 8, said);
        (rank, size)
    };
    assert_eq!(local((Some(2), Some(4))), (2, 4));
    assert_eq!([(None, None), (Some(2), None), (Some(4), Some(4))].map(local), [(6, 8); 3]);
}

#[test]
fn a_thread_is_pinned_when_asked_and_free_again_unless_it_is_kept() {
    // A thread of its own, so that other tests keep their cores.
    let test = || {
        let before = allowed();
        let Some(&last) = before.last() else {
            return eprintln!("SKIP: the kernel does not tell who may run where");
        };
        drop(Pinned::thread(Pinning::None, Local { rank: 0, size: 1 }));
        assert_eq!(allowed(), before);
        let size = before.len() as u32;
        let pinned = Pinned::thread(Pinning::Cores, Local { rank: size - 1, size });
        assert_eq!(allowed().len(), 1);
        drop(pinned);
        assert_eq!(allowed(), before);
        Pinned::thread(Pinning::Cores, Local { rank: size - 1, size }).keep();
        let kept = allowed();
        assert_eq!(kept.len(), 1);
        // A later pin leaves it this one core.
        Pinned::thread(Pinning::Domains, Local { rank: 0, size: 3 }).keep();
        assert_eq!(allowed(), kept);
        assert!(before.contains(&last) && kept.is_subset(&before));
    };
    std::thread::spawn(test).join().expect("no panic");
}
