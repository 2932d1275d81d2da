/* SPDX-License-Identifier: MIT */
/*
 * lib/printable.c replaces the characters that a terminal obeys by '?' and keeps other text in
 * UTF-8.
 */
#include "lib/printable.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "test/unit/test.h"

static bool becomes(const char *before, const char *after)
{
	char words[256];

	snprintf(words, sizeof(words), "%s", before);
	gcr_make_printable(words);
	if (strcmp(words, after) != 0)
		fprintf(stderr, "'%s', expected '%s'\n", words, after);
	return !strcmp(words, after);
}

static bool stays(const char *words)
{
	return becomes(words, words);
}

static void test_text_stays(void)
{
	CHECK(stays(""));
	CHECK(stays("/srv/models/a b ~!"));
	CHECK(stays("/srv/mod\xc3\xa8le"));		   /* U+00E8 */
	CHECK(stays("\xc2\xa0|\xdf\xbf"));		   /* U+00A0, U+07FF */
	CHECK(stays("\xe0\xa0\x80|\xef\xbf\xbd"));	   /* U+0800, U+FFFD */
	CHECK(stays("\xed\x9f\xbf|\xee\x80\x80"));	   /* on both sides of the surrogates */
	CHECK(stays("\xf0\x90\x80\x80|\xf4\x8f\xbf\xbf")); /* U+10000, U+10FFFF */
}

static void test_control_characters(void)
{
	CHECK(becomes("a\nb\tc\x1b[2Jd\x7f", "a?b?c?[2Jd?"));
	/* CSI and OSC as single bytes, and as characters of UTF-8. */
	CHECK(becomes("\x9b"
		      "2J",
		      "?2J"));
	CHECK(becomes("\xc2\x9b"
		      "2J|\xc2\x80|\xc2\x9f",
		      "??2J|??|??"));
	/* Line separators, and characters that change the direction. */
	CHECK(becomes("a\xe2\x80\xa8"
		      "b\xe2\x80\xa9"
		      "c",
		      "a???b???c"));
	CHECK(becomes("\xe2\x80\xae"
		      "gpj.exe|\xe2\x81\xa6|\xd8\x9c",
		      "???gpj.exe|???|??"));
}

static void test_not_utf8(void)
{
	CHECK(becomes("\x80|\xbf|\xc3", "?|?|?"));
	CHECK(becomes("\xc3(", "?("));
	CHECK(becomes("\xe2\x82", "??")); /* cut at the end */
	CHECK(becomes("\xf0\x9f\x98|", "???|"));
	CHECK(becomes("\xc0\xaf|\xc1\x9b", "??|??")); /* overlong encodings */
	CHECK(becomes("\xe0\x82\x9b|\xf0\x80\x82\x9b", "???|????"));
	CHECK(becomes("\xed\xa0\x80", "???")); /* a surrogate */
	CHECK(becomes("\xf4\x90\x80\x80|\xf8\x88\x80\x80\x80|\xff", "????|?????|?"));
}

/*
 * For any input the result has the same length, does not change when converted again, and holds no
 * control byte.
 */
static void test_all_pairs(void)
{
	for (int first = 1; first < 256; first++)
		for (int second = 1; second < 256; second++) {
			char words[4] = {(char)first, (char)second, 'x', '\0'};
			char again[4];

			gcr_make_printable(words);
			CHECK(strlen(words) == 3 && words[2] == 'x');
			memcpy(again, words, sizeof(again));
			gcr_make_printable(again);
			CHECK(!strcmp(again, words));
			for (const char *byte = words; *byte; byte++)
				CHECK((unsigned char)*byte >= 0x20 && *byte != 0x7f);
		}
}

static void test_lines(void)
{
	static const char lines[] = "a\tb\n\0\033[2J\r\n\xc3\xa4\x9b\n\xe2\x82";
	static const char expected[] = "a\tb\n??[2J?\n\xc3\xa4?\n??";
	char text[sizeof(lines)];

	memcpy(text, lines, sizeof(lines));
	gcr_make_lines_printable(text, sizeof(lines) - 1);
	CHECK(!memcmp(text, expected, sizeof(expected)));
	gcr_make_lines_printable(text, 0);
	CHECK(!memcmp(text, expected, sizeof(expected)));
}

int main(void)
{
	test_text_stays();
	test_control_characters();
	test_not_utf8();
	test_all_pairs();
	test_lines();
	return 0;
}
