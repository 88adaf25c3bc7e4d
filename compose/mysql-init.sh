#!/bin/bash
# The MySQL image runs this once. It creates the user of the job and a first table.
# It uses a subshell: if this file is not executable, the image sources it, and its own script fails with -u.
(
set -euo pipefail
password=${CDC_PASSWORD//\\/\\\\}  # a backslash and a quote have a meaning in a literal of MySQL
password=${password//\'/\'\'}
MYSQL_PWD="$MYSQL_ROOT_PASSWORD" mysql -u root <<SQL
CREATE USER 'cdc'@'%' IDENTIFIED BY '$password';
GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'cdc'@'%';
CREATE DATABASE shop;
CREATE TABLE shop.orders (id BIGINT NOT NULL PRIMARY KEY, status VARCHAR(20) NOT NULL, total DECIMAL(12,2) NOT NULL);
SQL
)
