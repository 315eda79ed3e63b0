// SPDX-License-Identifier: MIT
/*
 * A C++ program with threads: "words SECONDS [READERS]". Reader threads make pages of text and
 * split them into words; the main thread takes a page at a time from a queue that holds
 * eight, counts its words in a map, and writes a summary. A unit of work is a page: a call
 * of finish_page(). SECONDS 0: without end.
 *
 * By construction the main thread is the slower side: counter::count and counter::summarise
 * delay a page by what they are delayed, reader::make_page and reader::split do not, until
 * the readers are slower than it.
 */
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define TARGET __attribute__((noinline, noclone))

using page = std::vector<std::string>;
using clock_type = std::chrono::steady_clock;

class queue {
public:
	void put(page &&p)
	{
		std::unique_lock<std::mutex> lock(mutex_);

		room_.wait(lock, [this] { return pages_.size() < 8; });
		pages_.push_back(std::move(p));
		ready_.notify_one();
	}

	page take()
	{
		std::unique_lock<std::mutex> lock(mutex_);

		ready_.wait(lock, [this] { return !pages_.empty(); });
		page p = std::move(pages_.front());
		pages_.pop_front();
		room_.notify_one();
		return p;
	}

private:
	std::mutex mutex_;
	std::condition_variable room_, ready_;
	std::deque<page> pages_;
};

class reader {
public:
	explicit reader(unsigned int seed) : draw_(seed) {}

	TARGET std::string make_page()
	{
		std::string text;

		for (int i = 0; i < 6000; i++) {
			unsigned int n = draw_() % 2000;

			text += static_cast<char>('a' + n % 26);
			text += std::to_string(n);
			text += ' ';
		}
		return text;
	}

	TARGET page split(const std::string &text)
	{
		page words;
		size_t at = 0, end;

		while ((end = text.find(' ', at)) != std::string::npos) {
			words.push_back(text.substr(at, end - at));
			at = end + 1;
		}
		return words;
	}

private:
	std::minstd_rand draw_;
};

class counter {
public:
	TARGET void count(const page &words)
	{
		for (const std::string &word : words)
			counts_[word]++;
	}

	TARGET std::string summarise()
	{
		std::multimap<unsigned long, std::string> by_count;
		std::string text;

		for (const auto &[word, n] : counts_)
			by_count.emplace(n, word);
		for (auto it = by_count.rbegin(); it != by_count.rend(); ++it)
			text += it->second + ' ' + std::to_string(it->first) + '\n';
		return text;
	}

private:
	std::map<std::string, unsigned long> counts_;
};

extern "C" TARGET void finish_page(const std::string &summary)
{
	__asm__ volatile("" : : "r"(summary.data()) : "memory");
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? std::strtod(argv[1], nullptr) : 5;
	unsigned int readers = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1;
	static queue pages;
	counter counts;
	unsigned long done = 0;

	for (unsigned int i = 0; i < readers; i++)
		std::thread([i] {
			reader mine(i + 1);

			for (;;)
				pages.put(mine.split(mine.make_page()));
		}).detach();
	auto begin = clock_type::now();
	for (;;) {
		counts.count(pages.take());
		finish_page(counts.summarise());
		done++;
		std::chrono::duration<double> took = clock_type::now() - begin;
		if (seconds > 0 && took.count() > seconds) {
			std::printf("{\"units\": %lu, \"seconds\": %.6f}\n", done, took.count());
			std::fflush(stdout);
			std::_Exit(0);
		}
	}
}
