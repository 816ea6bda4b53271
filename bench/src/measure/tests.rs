use std::sync::{Arc, Mutex};

use super::*;
use crate::collective::Collective;
use crate::group::stand_in::{Mistake, local};

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

fn run_ranks(line: &str, ranks: u32, mistake: Mistake) -> (Vec<Result<Exit, Failure>>, String) {
    let settings = crate::arguments::parse(format!("collbench {line}").split(' ').map(Into::into)).unwrap();
    let page = Page::default();
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = local(ranks, mistake)
            .into_iter()
            .map(|group| {
                let (settings, page) = (&settings, page.clone());
                scope.spawn(move || {
                    let output = Output { out: Box::new(page), arguments: vec![], progress: Way::Nowhere };
                    run(settings, &group, output)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
    (results, text)
}

fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn all_collectives_are_right_in_both_placements() {
    for collective in Collective::ALL {
        let name = collective.name();
        for ranks in [1, 2, 3, 4].into_iter().filter(|ranks| collective.check_ranks(*ranks).is_ok()) {
            let (results, text) =
                run_ranks(&format!("{name} -b 0 -e 40K -i 13333 -r -1 -n 2 -c 2"), ranks, Mistake::None);
            assert!(
                results.iter().all(|result| *result == Ok(Exit::Done)),
                "{name} {ranks} {results:?}\n{text}"
            );
            let roots = if collective.has_root() { ranks as usize } else { 1 };
            let in_place = if collective.has_in_place() { "0" } else { "N/A" };
            let rows = rows(&text);
            assert_eq!(rows.len(), 4 * roots, "{text}");
            assert!(rows.iter().all(|row| row.len() == 13 && row[8] == "0" && row[12] == in_place), "{text}");
        }
    }
}

#[test]
fn send_and_receive_has_no_in_place_form() {
    let (results, text) = run_ranks("sendrecv --size 1000 -n 2", 3, Mistake::None);
    assert_eq!(results[0], Ok(Exit::Done), "{text}");
    assert_eq!(rows(&text)[0][..5], ["1000", "250", "float", "none", "-1"]);
    assert_eq!(rows(&text)[0][8..], ["0", "N/A", "N/A", "N/A", "N/A"]);
}

#[test]
fn the_algorithm_is_named_once_and_only_where_there_is_work() {
    let (results, text) = run_ranks("allreduce -b 0 -e 3000 -i 1000 -n 1", 2, Mistake::None);
    assert_eq!(results[0], Ok(Exit::Done), "{text}");
    let lines: Vec<&str> = text.lines().skip_while(|line| line.starts_with('#')).collect();
    assert!(lines[0].trim_start().starts_with("0 "), "{text}");
    assert_eq!(lines[1], "# algorithm of the next lines: by mutex");
    assert_eq!(text.matches("# algorithm").count(), 1, "{text}");
}

#[test]
fn a_hypercube_of_three_is_refused() {
    let (results, text) = run_ranks("hypercube --size 4K", 3, Mistake::None);
    let failure = results[0].clone().unwrap_err();
    assert!(failure.exit == Exit::Usage && failure.message.contains("not 3; use --ranks"), "{failure}");
    assert_eq!(text, "");
}

#[test]
fn wrong_bytes_are_counted_and_fail_on_all_ranks() {
    let (results, text) = run_ranks("allreduce --size 4K -n 1", 2, Mistake::WrongByte);
    assert!(results.iter().all(|result| *result == Ok(Exit::WrongData)), "{results:?}");
    let rows = rows(&text);
    assert_eq!((rows[0][8], rows[0][12]), ("1", "1"));
    assert!(text.contains("# Out of bounds values : 2 FAILED"), "{text}");
}

#[test]
fn a_result_that_was_not_written_fails_even_after_a_right_one() {
    let (results, text) = run_ranks("allgather --size 4K -n 1 -c 3", 2, Mistake::NotWritten);
    assert_eq!(results[0], Ok(Exit::WrongData));
    assert!(rows(&text)[0][8].parse::<u64>().unwrap() > 900, "{text}");
}

#[test]
fn without_checks_nothing_is_said_about_wrong_elements() {
    let (results, text) = run_ranks("allreduce --size 4K -n 1 -c 0", 2, Mistake::WrongByte);
    assert_eq!(results[0], Ok(Exit::Done));
    assert_eq!(rows(&text)[0][8], "N/A");
}

#[test]
fn an_error_of_the_library_ends_the_run_with_its_text() {
    let (results, text) = run_ranks("allreduce --size 4K", 2, Mistake::Fails);
    let failure = results[0].clone().unwrap_err();
    assert_eq!((failure.exit, failure.message.as_str()), (Exit::Library, "made to fail"));
    assert!(text.contains("# error: made to fail"), "{text}");
}

#[test]
fn a_root_that_does_not_exist() {
    let (results, _) = run_ranks("reduce --size 4K -r 2", 2, Mistake::None);
    let failure = results[0].clone().unwrap_err();
    assert!(failure.exit == Exit::Usage && failure.message.contains("the last is 1"), "{failure}");
}

#[test]
fn iterations_cycles_and_extra_columns() {
    let (results, text) =
        run_ranks("allreduce --size 4K -n 4 -m 2 -w 0 -N 3 -z 1 -I --percentiles -a 3 -M", 2, Mistake::None);
    assert_eq!(results[0], Ok(Exit::Done));
    let rows = rows(&text);
    assert_eq!((rows.len(), rows[0].len()), (3, 5 + 2 * (4 + 4 + 5)));
    assert!(text.contains("# Library memory       : 4 KiB per rank"), "{text}");
    assert!(text.contains("#  Rank  1 Group  0 Pid"), "{text}");
}

#[test]
fn each_iteration_is_as_slow_as_its_slowest_rank() {
    assert_eq!(slowest(&[vec![1.0, 5.0], vec![2.0, 3.0]]), [2.0, 5.0]);
    assert_eq!(slowest(&[]), [0.0; 0]);
}
