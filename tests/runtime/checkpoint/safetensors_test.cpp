#include "runtime/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "runtime/base/error.h"
#include "tests/support/scratch_dir.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

class Safetensors : public testing::Test {
 protected:
  std::filesystem::path put(const std::string& bytes) {
    std::ofstream(scratch_ / "t.safetensors", std::ios::binary) << bytes;
    return scratch_ / "t.safetensors";
  }
  // The message with which the file is refused; empty when it is not.
  std::string refusal(const std::string& bytes) {
    try {
      const SafetensorsFile file(put(bytes));
      return "";
    } catch (const Error& problem) {
      EXPECT_EQ(problem.code(), ErrorCode::kCheckpoint);
      EXPECT_THAT(problem.what(), HasSubstr("t.safetensors"));
      return problem.what();
    }
  }
  ScratchDir scratch_;
};

TEST_F(Safetensors, WhatIsWrittenIsRead) {
  const std::vector<SafetensorsEntry> entries = {{"a", DType::kF32, {2, 3}},
                                                 {"empty", DType::kI32, {0, 4}},
                                                 {"scalar", DType::kU8, {}},
                                                 {"b.weight", DType::kBF16, {3}}};
  const SafetensorsLayout layout = lay_out_safetensors(entries, {{"format", "pt"}});
  EXPECT_EQ(layout.header.size() % 8, 0U);
  EXPECT_EQ(layout.file_bytes, layout.header.size() + 24 + 0 + 1 + 6);
  EXPECT_EQ(layout.offsets[3], layout.header.size() + 25);
  const SafetensorsFile file(put(layout.header + std::string("0123456789abcdefghijklmnopqrstu")));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(file.find("a").shape, (Shape{2, 3}));
  EXPECT_EQ(file.find("b.weight").dtype, "BF16");
  std::string text(4, ' ');
  file.read(file.find("b.weight"), 2, text.data(), 4);
  EXPECT_EQ(text, "rstu");
  EXPECT_THROW(file.find("c"), Error);
}

TEST_F(Safetensors, OneNameTwiceIsRefusedWhenWriting) {
  const std::vector<SafetensorsEntry> entries = {{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}};
  EXPECT_THROW(lay_out_safetensors(entries, {}), Error);
}

TEST_F(Safetensors, AFileWrittenByHandIsRead) {
  const std::string header = R"({"__metadata__":{"format":"pt"},"x":{"dtype":"F16","shape":[2],"data_offsets":[4,8]},)"
                             R"("mask":{"dtype":"BOOL","shape":[2,2],"data_offsets":[0,4]}}   )";
  const SafetensorsFile file(put(file_of(header, "mmmmXXXX")));
  EXPECT_EQ(file.find("x").offset, 8 + header.size() + 4);
  EXPECT_EQ(file.find("mask").dtype, "BOOL");
  EXPECT_FALSE(dtype_of_safetensors("BOOL").has_value());
  EXPECT_EQ(dtype_of_safetensors("F16"), DType::kF16);
}

TEST_F(Safetensors, DamagedHeadersAreRefused) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"x":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::string data = "12345678";
  EXPECT_EQ(refusal(file_of(one("\"F32\"", "[2]", "[0,8]"), data)), "");
  EXPECT_THAT(refusal(""), HasSubstr("at least 8 bytes"));
  EXPECT_THAT(refusal(std::string(8, '\xff') + "abc"), HasSubstr("header"));
  EXPECT_THAT(refusal(file_of("{", data)), HasSubstr("JSON"));
  EXPECT_THAT(refusal(file_of("[1]", data)), HasSubstr("JSON"));
  EXPECT_THAT(refusal(file_of(R"({"__metadata__":{"a":1}})", "")), HasSubstr("__metadata__"));
  EXPECT_THAT(refusal(file_of(R"({"x":3})", data)), HasSubstr("\"dtype\""));
  EXPECT_THAT(refusal(file_of(one("\"F33\"", "[2]", "[0,8]"), data)), AllOf(HasSubstr("\"x\""), HasSubstr("F33")));
  EXPECT_THAT(refusal(file_of(one("7", "[2]", "[0,8]"), data)), HasSubstr("dtype"));
  EXPECT_THAT(refusal(file_of(one("\"F32\"", "[3]", "[0,8]"), data)),
              AllOf(HasSubstr("12 bytes"), HasSubstr("8 bytes"), HasSubstr("\"x\"")));
  EXPECT_THAT(refusal(file_of(one("\"F32\"", "[-2]", "[0,8]"), data)), HasSubstr("shape"));
  EXPECT_THAT(refusal(file_of(one("\"F32\"", "[4294967296,4294967296]", "[0,8]"), data)), HasSubstr("shape"));
  EXPECT_THAT(refusal(file_of(one("\"F32\"", "[1,1,1,1,1,2]", "[0,8]"), data)), HasSubstr("shape"));
  EXPECT_THAT(refusal(file_of(one("\"F32\"", "[2]", "[8,0]"), data)), HasSubstr("data_offsets"));
  EXPECT_THAT(refusal(file_of(one("\"F32\"", "[2]", "[4,12]"), data)), HasSubstr("data_offsets"));
  EXPECT_THAT(refusal(file_of(one("\"F32\"", "[2]", "[0.5,8]"), data)), HasSubstr("data_offsets"));
  EXPECT_THAT(refusal(file_of(one("\"F32\"", "[2]", "[0,8]"), data + "more")), HasSubstr("end at byte"));
  EXPECT_THAT(refusal(file_of(one("\"F32\"", "[1]", "[4,8]"), data)), HasSubstr("gap"));
  EXPECT_THAT(refusal(file_of(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                              R"("y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                              data)),
              AllOf(HasSubstr("\"y\""), HasSubstr("overlaps")));
}

// Whatever single byte of a header is damaged, opening the file ends in an Error or in a file that is read within its
// bounds; it never crashes.
TEST_F(Safetensors, EveryDamagedHeaderByteIsSurvived) {
  const std::vector<SafetensorsEntry> entries = {{"a", DType::kF32, {2, 3}}, {"b", DType::kI64, {2}}};
  const SafetensorsLayout layout = lay_out_safetensors(entries, {{"k", "v"}});
  const std::string good = layout.header + std::string(40, 'd');
  int refused = 0;
  for (size_t i = 0; i < layout.header.size(); ++i) {
    for (const int flip : {1, 2, 16, 128}) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      refused += refusal(bytes).empty() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, static_cast<int>(layout.header.size()));
}

}  // namespace
}  // namespace ashlar
