#!/bin/bash
# Run once by the MySQL image: the job's user, and a table to begin with.
# In a shell of its own: where this file is not executable the image reads it into its own script, which fails under -u.
(
set -euo pipefail
MYSQL_PWD="$MYSQL_ROOT_PASSWORD" mysql -u root <<SQL
CREATE USER 'cdc'@'%' IDENTIFIED BY '${CDC_PASSWORD//\'/\'\'}';
GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'cdc'@'%';
CREATE DATABASE shop;
CREATE TABLE shop.orders (id BIGINT NOT NULL PRIMARY KEY, status VARCHAR(20) NOT NULL, total DECIMAL(12,2) NOT NULL);
SQL
)
