//! A library that panics where it is asked to, and catches it. Linked as `libnccl.so.2` is, it shows that the unwinder which
//! is linked into that one works: with the system's linker in the tests of the repository, with zig's in `python/build-wheel`.

#[unsafe(no_mangle)]
pub extern "C" fn ends_well(number: i32) -> i32 {
    struct Undone<'a>(&'a mut i32);
    impl Drop for Undone<'_> {
        fn drop(&mut self) {
            *self.0 += 1;
        }
    }
    let mut undone = 0;
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _undone = Undone(&mut undone);
        assert!(number != 7, "as asked");
    }));
    if caught.is_err() { 10 + undone } else { 0 }
}
