#!/usr/bin/env bash
# Apache Kafka's jars: DumpLogSegments reads what we wrote, and the brokers are the peer of the benchmark.
name=kafka version=4.4.0
. "$(dirname "$0")/lib.sh"
present && exit
need java "version 17 or later"
need mvn "Apache Maven"
scratch
mvn -q -B -f "$here/kafka.pom.xml" "-Dmaven.repo.local=$cache/maven" "-Dkafka.version=$version" \
  org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
  "-DoutputDirectory=$work/libs" -DincludeScope=runtime >"$parts/$name.log" 2>&1 ||
  { tail -n 20 "$parts/$name.log" >&2; exit 1; }
finish "$work"
