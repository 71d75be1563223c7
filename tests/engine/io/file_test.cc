// Whole files: what is not a regular file is refused or, for writing, not replaced.
#include "engine/io/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "io_test.h"

namespace me::testing {
namespace {

constexpr int64_t kMany = 1 << 20;

Status write_text(const std::string& path, const std::string& text) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  const std::span<const std::byte> parts[] = {bytes.subspan(0, text.size() / 2),
                                              bytes.subspan(text.size() / 2)};
  return write_file(path, parts);
}

mode_t mode_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::lstat(path.c_str(), &info), 0) << path;
  return info.st_mode;
}

TEST(ReadFileTest, ContentUpToTheLimit) {
  const TempFolder folder;
  const std::string content("a\0b\n", 4);
  const std::string path = folder.write("x", content);
  const auto whole = read_file(path, 4);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole.value(), content);
  expect_error(read_file(path, 3), ErrorKind::kInvalid, path, "found 4 bytes, expected at most 3");
  const auto empty = read_file(folder.write("empty", ""), 0);
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty.value(), "");
}

TEST(ReadFileTest, SparseFileBeyondTheLimit) {
  const TempFolder folder;
  const std::string path = folder.write("x", "");
  constexpr int64_t kHuge = int64_t{1} << 43;
  if (::truncate(path.c_str(), kHuge) != 0) GTEST_SKIP() << "no sparse files here";
  expect_error(read_file(path, kMany), ErrorKind::kInvalid, path, "expected at most");
}

TEST(ReadFileTest, WhatIsNoRegularFileIsRefusedWithoutWaiting) {
  const TempFolder folder;
  const auto refuses = [](const std::string& path, const std::string& part) {
    expect_error(read_file(path, kMany), ErrorKind::kInvalid, path, part);
    expect_error(read_npy(path), ErrorKind::kInvalid, path, part);
  };
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("pipe", folder.path("link"));
  refuses(folder.path("pipe"), "found a pipe, expected a regular file");
  refuses(folder.path("link"), "found a pipe");
  refuses(folder.path(), "found a folder");
  refuses("/dev/zero", "found a device");
  refuses(folder.path("none"), "No such file");
  refuses("", "No such file");
  refuses(folder.write("x", "") + std::string("\0y", 2), "NUL byte");
}

TEST(WriteFileTest, NewFileAndReplacedFile) {
  const TempFolder folder;
  const mode_t mask = ::umask(027);
  const std::string path = folder.path("x");
  ASSERT_TRUE(write_text(path, "first").ok());
  ::umask(mask);
  EXPECT_EQ(read_bytes(path), "first");
  EXPECT_EQ(mode_of(path) & 07777, 0640u);
  ASSERT_EQ(::chmod(path.c_str(), 0604), 0);
  ASSERT_TRUE(write_text(path, "second, longer").ok());
  EXPECT_EQ(read_bytes(path), "second, longer");
  EXPECT_EQ(mode_of(path) & 07777, 0604u);
  ASSERT_TRUE(write_text(path, "").ok());
  EXPECT_EQ(read_bytes(path), "");
  EXPECT_EQ(folder.files(), 1);
}

TEST(WriteFileTest, AnOpenReaderKeepsTheOldFile) {
  const TempFolder folder;
  const std::string path = folder.write("x", "old");
  std::ifstream reader(path);
  ASSERT_TRUE(write_text(path, "new").ok());
  std::string content;
  reader >> content;
  EXPECT_EQ(content, "old");
}

TEST(WriteFileTest, SymbolicLinkIsFollowed) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path("real"));
  folder.write("real/x", "old");
  std::filesystem::create_symlink("real/x", folder.path("link"));
  ASSERT_TRUE(write_text(folder.path("link"), "new").ok());
  EXPECT_TRUE(S_ISLNK(mode_of(folder.path("link"))));
  EXPECT_EQ(read_bytes(folder.path("real/x")), "new");

  std::filesystem::create_symlink("nowhere", folder.path("dangling"));
  const std::string dangling = folder.path("dangling");
  expect_error(write_text(dangling, "new"), ErrorKind::kRuntime, dangling, "cannot be followed");
  EXPECT_TRUE(S_ISLNK(mode_of(dangling)));
}

TEST(WriteFileTest, FailureLeavesNothingBehind) {
  const TempFolder folder;
  const std::string nowhere = folder.path("none/x");
  expect_error(write_text(nowhere, "new"), ErrorKind::kRuntime, nowhere, "cannot be written");
  folder.write("file", "old");
  const std::string below = folder.path("file/x");
  expect_error(write_text(below, "new"), ErrorKind::kRuntime, below, "cannot be written");
  expect_error(write_text(folder.path(), "new"), ErrorKind::kRuntime, folder.path(),
               "not a regular file");
  expect_error(write_text("", "new"), ErrorKind::kRuntime, "", "No such file");
  EXPECT_EQ(read_bytes(folder.path("file")), "old");
  EXPECT_EQ(folder.files(), 1);
}

// The file-size limit makes a write fail half-way, as a full disk does.
TEST(WriteFileTest, HalfWrittenLeavesTheOldFile) {
  const TempFolder folder;
  const std::string path = folder.write("x", "old");
  EXPECT_EXIT(
      {
        ::signal(SIGXFSZ, SIG_IGN);
        rlimit limit = {};
        limit.rlim_cur = limit.rlim_max = 4096;
        if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) std::_Exit(2);
        const auto status = write_text(path, std::string(100'000, 'x'));
        std::_Exit(!status.ok() && status.error().kind == ErrorKind::kRuntime ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(folder.files(), 1);
}

TEST(WriteFileTest, DevicesAndPipesAreWrittenDirectly) {
  const mode_t before = mode_of("/dev/null");
  ASSERT_TRUE(write_text("/dev/null", "gone").ok());
  EXPECT_EQ(mode_of("/dev/null"), before);
  EXPECT_TRUE(S_ISCHR(mode_of("/dev/null")));
  expect_error(write_text("/dev/full", "gone"), ErrorKind::kRuntime, "/dev/full", "No space left");

  const TempFolder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_error(write_text(pipe, "x"), ErrorKind::kRuntime, pipe, "cannot be written");  // no reader
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  ASSERT_EQ(::fcntl(reader, F_SETFL, 0), 0);
  const std::string sent(300'000, 'x');  // more than the pipe holds at once
  bool written = false;
  std::thread writer([&] { written = write_text(pipe, sent).ok(); });
  std::string received;
  char buffer[4096];
  ssize_t n = 0;
  while (received.size() < sent.size() && (n = ::read(reader, buffer, sizeof buffer)) >= 0) {
    received.append(buffer, static_cast<size_t>(n));
  }
  writer.join();
  ::close(reader);
  EXPECT_TRUE(written);
  EXPECT_EQ(received, sent);
  EXPECT_TRUE(S_ISFIFO(mode_of(pipe)));
}

TEST(WriteFileTest, StandardOutputIsAppendedToAndStaysWhatItWas) {
  const TempFolder folder;
  const std::string path = folder.path("out");
  const mode_t before = mode_of("/dev/stdout");
  EXPECT_EXIT(
      {
        const int out = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (::dup2(out, STDOUT_FILENO) < 0 || ::write(STDOUT_FILENO, "said. ", 6) != 6) {
          std::_Exit(2);
        }
        std::_Exit(write_text("/dev/stdout", "written").ok() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_EQ(read_bytes(path), "said. written");
  EXPECT_EQ(mode_of("/dev/stdout"), before);
  EXPECT_EQ(folder.files(), 1);
}

}  // namespace
}  // namespace me::testing
