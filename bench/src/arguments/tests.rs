use super::*;

fn settings(line: &str) -> Result<Settings, String> {
    parse(format!("collbench {line}").split(' ').map(Into::into)).map_err(|(text, _)| text)
}

#[test]
fn the_arguments_are_consistent() {
    use clap::CommandFactory;
    Arguments::command().debug_assert();
}

#[test]
fn defaults_are_those_of_nccl_tests() {
    let settings = settings("all_reduce").unwrap();
    assert_eq!(settings.sweep.sizes().collect::<Vec<_>>(), [32 << 20]);
    assert_eq!((settings.data_types, settings.ops), (vec![DataType::Float32], vec![Operator::Sum]));
    assert_eq!((settings.iterations, settings.warmups, settings.calls, settings.checks), (None, 1, 1, 1));
    assert_eq!((settings.root, settings.average, settings.timeout), (Some(0), Average::Mean, None));
}

#[test]
fn short_flags_long_names_and_both_separators() {
    let short = settings(
        "allreduce -b 8 -e 1K -f 2 -d half -o max -r 1 -n 5 -w 2 -m 3 -N 2 -c 0 -z 1 -a 3 -T 9 -u 1 -I",
    )
    .unwrap();
    let long = "allreduce --minbytes 8 --maxbytes 1024 --stepfactor 2 --datatype float16 --op MAX --root 1 --iters 5";
    for rest in [
        "--warmup_iters 2 --agg_iters 3 --run_cycles 2 --check 0 --blocking 1 --average 3 --timeout 9 --unalign 1 --per_iter_timing",
        "--warmup-iters=2 --agg-iters=3 --run-cycles=2 --check=0 --blocking=1 --average=3 --timeout=9 --unalign=1 --per-iter-timing 1",
    ] {
        let long = settings(&format!("{long} {rest}")).unwrap();
        assert_eq!(format!("{long:?}"), format!("{short:?}"));
    }
    assert_eq!(short.sweep.sizes().count(), 8);
    assert_eq!(short.timeout, Some(Duration::from_secs(9)));
    assert!(short.per_iteration && short.times_each());
}

#[test]
fn sizes() {
    let sizes = |line: &str| settings(line).map(|settings| settings.sweep.sizes().collect::<Vec<_>>());
    assert_eq!(sizes("allreduce --size 1G"), Ok(vec![1 << 30]));
    assert_eq!(sizes("allreduce -b 64M"), Ok(vec![64 << 20]));
    assert_eq!(sizes("allreduce -e 8"), Ok(vec![8]));
    assert_eq!(sizes("allreduce -b 1M -e 3M"), Ok(vec![1 << 20, 2 << 20, 3 << 20]));
    assert_eq!(sizes("allreduce -b 1M -e 3M -i 2M -f 1"), Ok(vec![1 << 20, 3 << 20]));
    assert!(sizes("allreduce -b 2M -e 1M").unwrap_err().contains("larger"));
    assert!(sizes("allreduce --size 1G -b 8").is_err());
    assert!(sizes("allreduce -b 1T").unwrap_err().contains("K, M or G"));
}

#[test]
fn types_operators_and_roots() {
    let all = settings("reduce -d all -o all -r -1").unwrap();
    assert_eq!((all.data_types.len(), all.ops.len(), all.root), (12, 6, None));
    assert_eq!(settings("broadcast -o all").unwrap().ops, [Operator::Sum]);
    assert!(settings("reduce -d int7").unwrap_err().contains("bfloat16"));
    assert_eq!(settings("reduce -o MULSUM").unwrap().ops, [Operator::MulSum]);
    assert!(settings("reduce -o mean").unwrap_err().contains("avg mulsum, all"));
    assert!(settings("reduce -r -2").unwrap_err().contains("-r -2"));
}

#[test]
fn foreign_flags_are_taken_when_they_change_nothing_and_refused_otherwise() {
    assert!(settings("all_reduce_perf -b 8 -e 128M -f 2 -g 1 -t 1 -G 0 -R 0 -p 0 -x -1 -C 0").is_ok());
    for (flag, word) in
        [("-g 8", "--ranks"), ("-G 3", "CUDA graphs"), ("--report_cputime 1", "the processor's")]
    {
        let error = settings(&format!("allreduce {flag}")).unwrap_err();
        assert!(error.contains("is not supported") && error.contains(word), "{error}");
    }
    assert!(settings("allreduce -R 1").unwrap().shared && settings("allreduce -R 2").is_err());
    let threads = settings("allreduce -t 4").unwrap();
    assert!(threads.threads && threads.ranks == Some(4));
    assert!(settings("allreduce -t 4 --ranks 3").is_err());
}

#[test]
fn devices_and_how_many_ranks_a_thread_drives() {
    let devices = |line: &str| {
        let settings = settings(format!("allreduce --device cuda {line}").trim_end())?;
        let per_thread = settings.devices.expect("devices").per_thread;
        Ok::<_, String>((settings.threads, settings.ranks, per_thread))
    };
    assert_eq!(devices(""), Ok((false, None, 1)));
    assert_eq!(devices("--ranks 3 -t 1 -g 1"), Ok((false, Some(3), 1)));
    assert_eq!(devices("-t 3"), Ok((true, Some(3), 1)));
    assert_eq!(devices("-g 4"), Ok((true, Some(4), 4)));
    assert_eq!(devices("-t 2 -g 4 --ranks 8"), Ok((true, Some(8), 4)));
    assert_eq!(devices("-g 4 --ranks 8"), Ok((true, Some(8), 4)));
    assert!(devices("-g 4 --ranks 6").unwrap_err().contains("multiple"));
    assert!(devices("-t 2 -g 4 --ranks 4").unwrap_err().contains("not both"));
    assert!(settings("allreduce --device host --path fused").unwrap_err().contains("--device cuda"));
    let gpus = settings("allreduce --device cuda --gpus 1,0,1").unwrap().devices.unwrap().gpus;
    assert_eq!(gpus, Some(vec![1, 0, 1]));
    assert_eq!(settings("allreduce").unwrap().devices, None);
}

#[test]
fn nonsense_is_refused() {
    for line in [
        "alltonone",
        "",
        "allreduce -n 0",
        "allreduce -z 4",
        "allreduce --ranks 0",
        "allreduce --nonsense",
        "allreduce -a 9",
    ] {
        assert!(settings(line).is_err(), "{line}");
    }
    let (_, error) = parse(["collbench", "--help"].map(Into::into)).unwrap_err();
    assert!(!error);
    let (text, error) = parse(["collbench", "alltonone"].map(Into::into)).unwrap_err();
    assert!(error && text.contains("reduce_scatter"));
}

#[test]
fn the_last_of_a_repeated_flag_counts() {
    assert_eq!(settings("allreduce -n 5 -n 7").unwrap().iterations, Some(7));
}

#[test]
fn places_travel() {
    let place = Place { rank: 1, size: 3, parent: 77, progress: true };
    let settings = settings(&format!("allreduce {}", place.argument())).unwrap();
    assert_eq!(settings.place, Some(place));
    assert!(parse_place("3/3/1/0").is_err());
    assert!(parse_place("1/3").is_err());
}

#[test]
fn buffers_are_as_large_as_the_collective_needs() {
    let bytes = |line: &str| settings(line).unwrap().buffer_bytes(4);
    assert_eq!(bytes("allreduce --size 1M"), (1 << 20, 1 << 20));
    assert_eq!(bytes("allgather --size 1M"), (1 << 18, 1 << 20));
    assert_eq!(bytes("reducescatter --size 1M"), (1 << 20, 1 << 18));
    assert_eq!(bytes("alltoall --size 1M"), (1 << 20, 1 << 20));
    assert_eq!(bytes("scatter --size 1M"), (1 << 20, 1 << 18));
    assert_eq!(bytes("gatherv --size 1000"), (400, 1000));
}

#[test]
fn algorithms_are_named() {
    let algorithm = |line: &str| settings(line).map(|settings| settings.algorithm.map(|a| a.to_string()));
    assert_eq!(algorithm("allreduce"), Ok(None));
    assert_eq!(algorithm("allreduce --algo tree"), Ok(Some("tree".into())));
    assert_eq!(algorithm("allgatherv --algo ring(channels=2)"), Ok(Some("ring(channels=2)".into())));
    assert!(algorithm("allreduce --algo pigeons").unwrap_err().contains("is no algorithm; known: "));
    for messages in ["sendrecv", "alltoallv", "gatherv", "scatterv", "hypercube"] {
        let error = algorithm(&format!("{messages} --algo ring")).unwrap_err();
        assert!(error.contains("have no algorithm"), "{error}");
    }
}
