//! A level of hierarchy inside the host: ranks that share a cache or a memory node.
//!
//! No machine of the tests has several domains: what they choose on is a table of ranks that says so.

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;
use consort_kernels::ReduceOp;

use super::{machine, planning_on, settings};
use crate::Communicator;
use crate::planner::{Machine, Planner, Planning, Program};
use consort_control::bootstrap::Member;
use consort_settings::options::Determinism;
use consort_settings::options::{Options, TransportChoice};
use consort_topology::Place;

const HIERARCHICAL: Algorithm = Algorithm::Hierarchical { per_box: 4 };

/// Two domains of four ranks.
fn domains() -> Machine {
    Machine { per_domain: 4, ..machine(8) }
}

fn algorithm(planning: &Planning, collective: Collective, bytes: u64) -> Algorithm {
    planning.algorithm(collective, bytes).expect("a choice")
}

#[test]
fn the_level_is_used_where_it_is_cheaper_and_not_where_it_is_not() {
    let planning = planning_on(domains(), &settings(|options| options));
    for (collective, bytes) in [
        (Collective::AllReduce, 64 << 10),
        (Collective::AllReduce, 128 << 10),
        (Collective::ReduceScatter, 256 << 10),
    ] {
        assert_eq!(algorithm(&planning, collective, bytes), HIERARCHICAL, "{collective} of {bytes}");
    }
    for (collective, bytes) in [
        (Collective::AllReduce, 1 << 10),
        (Collective::AllReduce, 64 << 20),
        (Collective::AllGather, 1 << 20),
        (Collective::ReduceScatter, 64 << 20),
    ] {
        assert_ne!(algorithm(&planning, collective, bytes), HIERARCHICAL, "{collective} of {bytes}");
    }
    for bytes in (0..27).map(|shift| 1u64 << shift) {
        for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather] {
            let all = planning.candidates(collective).expect("some");
            assert!(all.contains(&HIERARCHICAL));
            let price = |algorithm| planning.price(algorithm, collective, bytes);
            let chosen = price(algorithm(&planning, collective, bytes));
            assert!(all.into_iter().all(|other| chosen <= price(other)), "{collective} of {bytes}");
        }
    }
}

#[test]
fn short_blocks_still_travel_in_messages() {
    let planning = planning_on(domains(), &settings(|options| options));
    let flat = planning_on(machine(8), &settings(|options| options));
    for bytes in [8, 1 << 10, 4 << 10] {
        let chosen = planning.choose(Collective::AllReduce, bytes).expect("a choice");
        assert!(chosen.packets, "{chosen:?}");
        let direct = Algorithm::Direct { first: 0 };
        let price = |of: &Planning| of.price(direct, Collective::AllReduce, bytes);
        assert!(price(&planning) > price(&flat), "lines of another domain come later");
    }
    assert!(planning.choose(Collective::AllReduce, 128 << 10).expect("a choice").meets);
}

#[test]
fn the_level_is_shown_and_part_of_what_is_compared() {
    let options = settings(|options| options);
    let planning = planning_on(domains(), &options);
    let explanation = planning.explain(Collective::AllReduce, 64 << 10).expect("an explanation");
    assert_eq!((explanation.topology.as_str(), explanation.per_box), ("domains:2x4", 4));
    let shown = explanation.to_string();
    assert!(shown.contains("on domains:2x4 [graph ") && shown.contains("] (in groups of 4)"), "{shown}");
    assert!(explanation.to_json().contains("\"topology\":\"domains:2x4\",\"graph_hash\":\""));
    assert!(planning.machine().starts_with("hosts=1 per_domain=4 cores=64 "), "{}", planning.machine());
    assert_ne!(Planning::key(&domains(), &options), Planning::key(&machine(8), &options));
    let flat = planning_on(machine(8), &options);
    assert!(flat.machine().starts_with("hosts=1 per_host=1 "));
    assert!(!flat.candidates(Collective::AllReduce).expect("some").contains(&HIERARCHICAL));
    let explanation = flat.explain(Collective::AllReduce, 64 << 10).expect("an explanation");
    assert_eq!((explanation.topology.as_str(), explanation.per_box), ("host:8", 1));
    assert!(!explanation.to_string().contains("groups"));
}

#[test]
fn plans_of_the_level_are_proved_and_bits_can_be_kept_from_it() {
    let planning = planning_on(domains(), &settings(|options| options));
    for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather] {
        let program = Program { collective, ranks: 8, algorithm: HIERARCHICAL };
        let proved =
            |rank| Planner::default().plan(program, rank, vec![true; 8]).expect("a proved plan").fold_hash;
        assert!((1..8).all(|rank| proved(rank) == proved(0)));
        assert_eq!(planning.fold_hash(HIERARCHICAL, collective), Some(proved(0)));
    }
    let invariant = settings(|options| options.determinism(Determinism::Invariant));
    let planning = planning_on(domains(), &invariant);
    assert!(!planning.candidates(Collective::AllReduce).expect("some").contains(&HIERARCHICAL));
    assert!(planning.candidates(Collective::AllGather).expect("some").contains(&HIERARCHICAL));
}

#[test]
fn where_memory_is_not_shared_or_a_machine_is_named_there_is_no_level() {
    let name = |machine: Machine, change: fn(Options) -> Options| {
        planning_on(machine, &settings(change)).topology().name.clone()
    };
    assert_eq!(name(domains(), |options| options), "domains:2x4");
    assert_eq!(name(Machine { cores: 4, ..domains() }, |options| options), "domains:2x4x4");
    assert_eq!(name(domains(), |options| options.transport(TransportChoice::Tcp)), "tcp:8x1");
    assert_eq!(name(domains(), |options| options.topology("host:8")), "host:8");
    assert_eq!(name(Machine { hosts: 2, per_box: 4, ..domains() }, |options| options), "tcp:2x4");
    // Named, it is a level whatever the ranks say.
    let named = planning_on(machine(8), &settings(|options| options.topology("domains:2x4")));
    assert!(named.candidates(Collective::AllReduce).expect("some").contains(&HIERARCHICAL));
}

/// Ranks that run in these caches: rank `r` in cache `caches[r]`.
fn ranks(caches: &[u32], options: &Options) -> Vec<Communicator> {
    let at = |rank: u32, of: Member| {
        let place = Place { cache: Some(caches[rank as usize]), node: None, ..Place::default() };
        Member { cores: 64, place, ..of }
    };
    Communicator::local_as(caches.len() as u32, settings(|_| options.clone()), &at).expect("ranks")
}

fn on_all(ranks: &[Communicator], body: impl Fn(&Communicator) + Sync) {
    std::thread::scope(|threads| {
        for comm in ranks {
            threads.spawn(|| body(comm));
        }
    });
}

#[test]
fn ranks_in_domains_run_what_the_level_chooses() {
    const ELEMENTS: usize = (64 << 10) / size_of::<i64>();
    on_all(&ranks(&[0, 0, 0, 0, 4, 4, 4, 4], &Options::default()), |comm| {
        let chosen = |collective, bytes| {
            comm.explain(collective, bytes).expect("an explanation").chosen().expect("one").algorithm
        };
        assert_eq!(chosen(Collective::AllReduce, 64 << 10), HIERARCHICAL);
        let me = i64::from(comm.rank());
        for round in 0..3 {
            let mut values: Vec<i64> = (0..ELEMENTS as i64).map(|at| at * (me + 1) + round).collect();
            comm.all_reduce(&mut values, ReduceOp::Sum).expect("every rank calls it");
            assert!(values.iter().zip(0..).all(|(value, at)| *value == 36 * at + 8 * round));
        }
        // Its bits are those of the level, which folds a domain's values first.
        let bits = |algorithm: Option<Algorithm>| {
            let value = |at: usize| 1.0 / (at as f32 + 1.7 * me as f32 + 0.3);
            let mut values: Vec<f32> = (0..2 * ELEMENTS).map(value).collect();
            let sum = ReduceOp::Sum;
            match algorithm {
                Some(algorithm) => comm.with_algorithm(algorithm).all_reduce(&mut values, sum),
                None => comm.all_reduce(&mut values, sum),
            }
            .expect("every rank calls it");
            values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let chosen_bits = bits(None);
        assert!(chosen_bits == bits(Some(HIERARCHICAL)), "another order of folding");
        assert!(chosen_bits != bits(Some(Algorithm::Direct { first: 0 })), "this shows nothing");
        // Far and near, long and short.
        assert_eq!(chosen(Collective::ReduceScatter, 128 << 10), HIERARCHICAL);
        let input: Vec<i64> = (0..8).flat_map(|block| vec![me + block; 2 * ELEMENTS]).collect();
        let mut output = vec![0i64; 2 * ELEMENTS];
        comm.reduce_scatter(&input, &mut output, ReduceOp::Sum).expect("every rank calls it");
        assert_eq!(output, vec![28 + 8 * me; 2 * ELEMENTS]);
        let mut short = [me; 3];
        comm.all_reduce(&mut short, ReduceOp::Max).expect("every rank calls it");
        assert_eq!(short, [7; 3]);
        let mut gathered = vec![0i64; 8 * ELEMENTS];
        comm.all_gather(&vec![me; ELEMENTS], &mut gathered).expect("every rank calls it");
        assert!(gathered.chunks(ELEMENTS).zip(0..).all(|(block, of)| block.iter().all(|value| *value == of)));
        // A part of them is a machine of its own.
        let part = comm.split(Some(comm.rank() % 4 / 2), 0).expect("a part").expect("a colour was given");
        let level = |comm: &Communicator| {
            let explanation = comm.explain(Collective::AllReduce, 64 << 10).expect("an explanation");
            (explanation.topology, explanation.per_box)
        };
        assert_eq!(level(&part), ("domains:2x2".into(), 2));
        let near = comm.split(Some(comm.rank() / 4), 0).expect("a part").expect("a colour was given");
        assert_eq!(level(&near), ("host:4".into(), 1));
    });
}

#[test]
fn without_domains_everything_is_as_it_was() {
    for caches in [[0, 4, 0, 4], [0, 0, 0, 0], [0, 0, 0, 4]] {
        on_all(&ranks(&caches, &Options::default()), |comm| {
            let explanation = comm.explain(Collective::AllReduce, 64 << 10).expect("an explanation");
            assert_eq!((explanation.topology.as_str(), explanation.per_box), ("host:4", 1));
        });
    }
}
